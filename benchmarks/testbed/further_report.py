"""The report's parts about slow aggregators, late reports, topics, backups, rounds, overlap and the twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from benchmarks.testbed import overlap_row, rounds_row, twin_row
from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.cells import BACKUP_CELL, LDA_CELL
from benchmarks.testbed.markdown import NONE, Values, interval, number, share, table, verdict

__all__ = ["TITLES", "WRITERS", "verdicts"]

TITLES = {
    "forwarded": "Updates forwarded to aggregators whose incoming link is at a quarter or less, N2",
    "reporting_lag": "Reporting lag of 2 s instead of 0.2 s, N2: longer per iteration",
    "topics": f"LDA, {LDA_CELL}: time to the same log-likelihood",
    "backups": f"Replication, {BACKUP_CELL}: bytes against strict; time added by a chain; by checkpoints",
    "rounds": rounds_row.TITLE,
    "overlap": overlap_row.TITLE,
    "twin": twin_row.TITLE,
}


def verdicts(rows: Values) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each row here: its title, our figure, the paper's, and whether it is reached."""
    for name, ours, paper in (
        ("forwarded", _forwarded_in_short(rows["forwarded"]), _forwarded_of_paper(rows["forwarded"])),
        ("reporting_lag", share(rows["reporting_lag"]["longer"]), share(rows["reporting_lag"]["paper"])),
        ("topics", _topics_in_short(rows["topics"]), _topics_of_paper(rows["topics"])),
        ("backups", _backups_in_short(rows["backups"]), _backups_of_paper(rows["backups"])),
        ("rounds", rounds_row.shown_in_short(rows["rounds"]), NONE),
        ("overlap", overlap_row.shown_in_short(rows["overlap"]), NONE),
        ("twin", twin_row.shown_in_short(rows["twin"]), NONE),
    ):
        yield TITLES[name], ours, paper, verdict(rows[name]["reached"])


def _forwarded_in_short(row: Values) -> str:
    found = ((name, v["share"]) for name, v in row["systems"].items())
    return ", ".join(f"{name} {share(value)}" for name, value in found if value is not None) or NONE


def _forwarded_of_paper(row: Values) -> str:
    return f"{share(row['paper'])} (static tree {share(row['paper_tree'])})"


def _topics_in_short(row: Values) -> str:
    saved, times = row["time_saved_against_ring"], row["times_as_fast_as_asynchronous"]
    if saved is None and times is None:
        return NONE
    return f"{share(saved)} less than ring, {interval(times)}x against asynchronous"


def _topics_of_paper(row: Values) -> str:
    return f"{share(row['paper_saved'])} less, {row['paper_times']:g}x"


def _backups_in_short(row: Values) -> str:
    if not row["systems"]:
        return NONE
    added = row["systems"]
    return (
        f"{interval(row['bytes_of_strict_over_bounded'])}x less; {_times(row['chain_over_replica'], added, 'chain')}; "
        f"{_times(row['checkpoint_over_replica'], added, 'checkpoint-1')}"
    )


def _backups_of_paper(row: Values) -> str:
    return f"{row['paper_bytes']:g}x less; up to {row['paper_chain']:g}x; {row['paper_checkpoint']:g}x"


def _times(ratio: float | None, added: Values, system: str) -> str:
    if ratio is not None:
        return f"{ratio:.1f}x"
    if system not in added:
        return NONE
    return f"{interval(added[system]['added_ms_per_commit'])} ms against nothing"


def _forwarded(row: Values) -> str:
    columns = ("system", "bytes behind slow links", "messages", "cells", "reached")
    made = table(
        columns,
        (
            (
                SYSTEMS[name].label,
                interval(v["share"], as_share=True),
                str(v["messages"]),
                ", ".join(v["cells"]),
                verdict(v["reached"]),
            )
            for name, v in row["systems"].items()
            if v["share"] is not None
        ),
    )
    return f"{made}\n\nSlow: at {share(row['slow_link'])} of the full rate or less when the transfer began."


def _reporting_lag(row: Values) -> str:
    return table(
        ("cell", "longer per iteration", "s/iteration, every 2 s", "every 0.2 s"),
        (
            (
                cell,
                interval(v["longer"], as_share=True),
                number(v["seconds_per_iteration"]),
                number(v["seconds_per_iteration_without"]),
            )
            for cell, v in row["cells"].items()
        ),
    )


def _topics(row: Values) -> str:
    made = table(
        ("system", "log-likelihood of a word at the end", "s/iteration", "dropped"),
        (
            (
                SYSTEMS[name].label,
                f"{v['log_likelihood_at_end']:.3f}",
                number(v["seconds_per_iteration"]),
                share(v["dropped_share"]),
            )
            for name, v in row["systems"].items()
        ),
    )
    return (
        f"{made}\n\nTimes are to {share(row['same_share'])} of the progress that the lesser of two runs makes: "
        f"{_topics_in_short(row)}."
    )


def _backups(row: Values) -> str:
    columns = ("backup", "a crash costs at most, updates", "bytes per update", "ms added per commit", "disk, ms")
    return table(
        columns,
        (
            (
                SYSTEMS[name].label,
                str(v["lead_updates"]),
                f"{v['bytes_per_update']:.0f}",
                interval(v["added_ms_per_commit"]),
                number(v["disk_ms"]) if v["disk_ms"] else NONE,
            )
            for name, v in row["systems"].items()
        ),
    )


WRITERS: Mapping[str, Callable[[Values], str]] = {
    "forwarded": _forwarded,
    "reporting_lag": _reporting_lag,
    "topics": _topics,
    "backups": _backups,
    "rounds": rounds_row.shown,
    "overlap": overlap_row.shown,
    "twin": twin_row.shown,
}
