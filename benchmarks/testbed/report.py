"""The table as a page: ``report.md`` from the plain values that ``--json`` has too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.testbed import further_report
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.markdown import NONE, Values, interval, number, points, share, table, verdict

__all__ = ["markdown", "verdicts"]

TITLES = {
    "asynchronous_vs_ring": "Time to the target accuracy, asynchronous, delay bound = number of workers, vs ring",
    "advised_vs_ring": "The same with the delay bound that `mlfabric advise` picks",
    "accuracy_at_the_end": "Accuracy at the end, less the ring's",
    "synchronous_vs_ring": "Synchronous method vs ring: time per iteration",
    "synchronous_vs_tree": "Synchronous method vs static tree, C2-N2",
    "dropped": "Updates dropped",
    **further_report.TITLES,
    "speed": "Every system in every cell",
}


def markdown(found: Values, figures: Sequence[str]) -> str:
    """Return the report.

    Args:
        found: what ``benchmarks.paper`` writes as JSON.
        figures: names of picture files beside the report.
    """
    rows = found["rows"]
    parts = [_head(found), _overview(rows)]
    parts += [f"## {TITLES[name]}\n\n{writer(rows[name])}" for name, writer in _WRITERS.items()]
    parts += [f"![{name}]({name})" for name in figures]
    parts.append(_tunings(found["tuning"]))
    parts.append(_runs(found["runs"]))
    return "\n\n".join(parts) + "\n"


def verdicts(rows: Values) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each row that has a requirement: its title, our figure, the paper's, and whether it is reached."""
    for name, ours, paper in (
        ("asynchronous_vs_ring", _ratios(rows["asynchronous_vs_ring"]), _ratios(rows["asynchronous_vs_ring"], "paper")),
        ("advised_vs_ring", f"mean {number(rows['advised_vs_ring']['mean'])}", NONE),
        ("accuracy_at_the_end", _differences(rows["accuracy_at_the_end"]), "74 % for both"),
        ("synchronous_vs_ring", _ratios(rows["synchronous_vs_ring"]), str(rows["synchronous_vs_ring"]["paper"])),
        (
            "synchronous_vs_tree",
            share(rows["synchronous_vs_tree"]["communication_saved_share"]),
            share(rows["synchronous_vs_tree"]["paper"]),
        ),
        ("dropped", _dropped(rows["dropped"]), f"C1-N1 {share(rows['dropped']['paper_share_c1_n1'])}"),
    ):
        yield TITLES[name], ours, paper, verdict(rows[name]["reached"])
    yield from further_report.verdicts(rows)


def _head(found: Values) -> str:
    settings = found["settings"]
    void = sum(run["saturated"] for run in found["runs"])
    failed = "".join(f"\n- failed: {line}" for line in found["failed"])
    return (
        "# The paper's table on the testbed\n\n"
        f"- {settings['workers']} workers, model {settings['model']}, batch {settings['batch_size']}, one model takes "
        f"{settings['wire_s'] * 1000:g} ms over a full-rate link, a step computes 100 ms; all undilated\n"
        f"- weather: {_weather(settings['server_weather'])}. The scheduler's host keeps its full rate, as its messages "
        "are not smaller than with large models\n"
        f"- dilation: {', '.join(f'{d:g}' for d in settings['dilations'])}; seeds: {settings['seeds']}; "
        f"target: {settings['target'] * 100:g} % of the test images, on the isotonic fit of each run's accuracy\n"
        f"- git revision: {', '.join(found['git_revisions'])}\n"
        f"- {len(found['runs'])} runs; {void} void, as all cores were saturated in them; means with 95 % confidence "
        f"intervals over paired seeds{failed}"
    )


def _weather(server_weather: bool) -> str:
    if server_weather:
        return "the links of workers, server and replica change their rates; the ideal assumes a free server's link"
    return "the workers' links change their rates; server and replica keep the full one, as the ideal assumes"


def _overview(rows: Values) -> str:
    return table(("result", "ours", "paper", "reached"), verdicts(rows))


def _asynchronous(row: Values) -> str:
    columns = ("cell", "ring / ours", "by gradients/s", "paper", "ideal", "ideal, known before", "required", "reached")
    return table(
        columns,
        (
            (
                cell,
                interval(v["ratio"]),
                interval(v["rate_ratio"]),
                number(v["paper"]),
                number(v["ideal"]),
                number(v["ideal_known"]),
                number(v["required"]),
                verdict(v["reached"]),
            )
            for cell, v in row["cells"].items()
        ),
    )


def _advised(row: Values) -> str:
    columns = ("cell", "delay bound", "ring / ours", "by gradients/s", "ideal", "ideal without bound", "reached")
    made = table(
        columns,
        (
            (
                cell,
                ", ".join(v["delay_bounds"]),
                interval(v["ratio"]),
                interval(v["rate_ratio"]),
                number(v["ideal"]),
                number(v["ideal_known_without_bound"]),
                verdict(v["reached"]),
            )
            for cell, v in row["cells"].items()
        ),
    )
    return (
        f"{made}\n\nMean of the cells: {number(row['mean'])} (required {number(row['required_mean'])}); of N3: "
        f"{number(row['mean_n3'])} (required in each {number(row['required_n3'])})."
    )


def _accuracy(row: Values) -> str:
    columns = ("system", "accuracy", "ring's", "difference, equal time", "difference, equal gradients", "reached")
    return table(
        columns,
        (
            (
                SYSTEMS[system].label,
                share(v["accuracy"]),
                share(v["ring_accuracy"]),
                points(v["difference"]),
                points(v["difference_at_equal_gradients"]),
                verdict(v["reached"]),
            )
            for system, v in row["systems"].items()
            if v["difference"] is not None
        ),
    )


def _synchronous(row: Values) -> str:
    return table(
        ("cell", "ring / ours", "ideal", "required", "reached"),
        (
            (cell, interval(v["ratio"]), number(v["ideal"]), number(v["required"]), verdict(v["reached"]))
            for cell, v in row["cells"].items()
        ),
    )


def _tree(row: Values) -> str:
    if row["communication_saved_share"] is None:
        return "Not measured."
    return table(
        ("communication time saved", "paper", "tree / ours, per iteration", "reached"),
        [
            (
                interval(row["communication_saved_share"], as_share=True),
                share(row["paper"]),
                interval(row["ratio"]),
                verdict(row["reached"]),
            )
        ],
    )


def _dropped_table(row: Values) -> str:
    return table(
        ("cell", "system", "dropped", "worker with the largest share", "fewest applied of a worker"),
        (
            (cell, SYSTEMS[name].label, share(v["share"]), share(v["largest_share"]), str(v["applied_of_least"]))
            for cell, systems in row["cells"].items()
            for name, v in systems.items()
        ),
    )


def _speed(row: Values) -> str:
    columns = ("cell", "system", "s/iteration", "ring, known before", "s to target", "met it", "delay p50", "p99")
    return table(
        columns,
        (
            (
                cell,
                SYSTEMS[name].label,
                interval(v["seconds_per_iteration"]),
                number(row["ring_known"].get(cell)) if name == "ring" else "",
                interval(v["seconds_to_target"]),
                f"{v['runs_that_met_the_target']} of {v['runs']}",
                f"{v['delay_p50']:.0f}",
                f"{v['delay_p99']:.0f}",
            )
            for cell, systems in row["cells"].items()
            for name, v in systems.items()
        ),
    )


_WRITERS = {
    "asynchronous_vs_ring": _asynchronous,
    "advised_vs_ring": _advised,
    "accuracy_at_the_end": _accuracy,
    "synchronous_vs_ring": _synchronous,
    "synchronous_vs_tree": _tree,
    "dropped": _dropped_table,
    **further_report.WRITERS,
    "speed": _speed,
}


def _tunings(tunings: Values) -> str:
    """Return which learning rate and momentum each search has found, and how much it tried."""
    columns = ("tuned", "learning rate", "momentum", "gradients to the targets", "settings tried", "rates tried")
    rows = (
        (
            SYSTEMS[name].label,
            f"{found['best']['learning_rate']:g}",
            f"{found['best']['momentum']:g}",
            _needed(found),
            str(len(found["tried"])),
            ", ".join(f"{rate:g}" for rate in sorted({tried["setting"]["learning_rate"] for tried in found["tried"]})),
        )
        for name, found in tunings.items()
    )
    return (
        f"## Tuning\n\n{table(columns, rows)}\n\nThe same search for all: each setting of one grid trains in one "
        "process, from the same seeds, with the order, the rounds and the delays of a short run of its system in "
        "C2-N2. The best setting needs the fewest gradients to all targets, added up; a training that never met one "
        "counts with all that it made."
    )


def _needed(tuning: Values) -> str:
    """Return how many gradients the best setting needed to each target."""
    best = next(tried for tried in tuning["tried"] if tried["setting"] == tuning["best"])
    pairs = zip(tuning["targets"], best["gradients"], strict=True)
    return ", ".join(f"{target * 100:g} %: {n:.0f}" for target, n in pairs)


def _runs(runs: Sequence[Values]) -> str:
    columns = ("cell", "system", "seed", "dilation", "s/iteration", "CPU used", "saturated", "late steps", "counts")
    rows = (
        (
            run["cell"],
            run["system"],
            str(run["seed"]),
            f"{run['dilation']:g}",
            number(run["seconds_per_iteration"]),
            share(run["cpu_used_share"]),
            share(run["cpu_saturated_share"]),
            share(run["overrun_share"]),
            "no" if run["saturated"] else "yes",
        )
        for run in runs
    )
    return f"## Runs\n\n{table(columns, rows)}"


def _ratios(row: Values, key: str = "ratio") -> str:
    """Return a figure of each cell, as the paper's tables have them."""
    found = [v[key]["mean"] if isinstance(v[key], Mapping) else v[key] for v in row["cells"].values()]
    return " ".join(number(value) for value in found) or NONE


def _differences(row: Values) -> str:
    found = ((SYSTEMS[name].name, values["difference"]) for name, values in row["systems"].items())
    return ", ".join(f"{name} {points(value)}" for name, value in found if value is not None) or NONE


def _dropped(row: Values) -> str:
    found = ((cell, systems.get("fabric-async")) for cell, systems in row["cells"].items())
    return ", ".join(f"{cell} {share(v['share'])}" for cell, v in found if v is not None) or NONE
