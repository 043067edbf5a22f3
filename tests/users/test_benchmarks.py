"""Every benchmark really runs, as small as makes sense; its figures have to be there, whatever they are.

The cheapest run in ``make test``, all of them in ``make test-long``: several minutes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.processes import Start
from tests.testbed.digits import HAS_DIGITS, NO_DIGITS

LONGEST_S = 600.0
pytestmark = [pytest.mark.processes, pytest.mark.timeout(LONGEST_S + 60)]


class Small(NamedTuple):
    """A benchmark in small.

    Args:
        settings: each goes behind a ``--set``.
        figures: that must be there; "a/b" is b within a.
        options: that it has besides; ``{folder}`` is one of the test's own.
        marks: of pytest.
    """

    settings: tuple[str, ...]
    figures: tuple[str, ...]
    options: str = ""
    marks: tuple[pytest.MarkDecorator, ...] = ()


HAS_MPI = Path(sys.executable).with_name("mpirun").is_file()
LONG = (pytest.mark.long,)
HOSTS = (pytest.mark.root,)
BENCHMARKS = {  # by name; what follows a space tells parts of one from another
    "accuracy": Small(
        ("seeds=2", "updates=40"), ("mean_difference", "ci95_low", "pairs/seed 1/updates_applied"), marks=LONG
    ),
    "averaging": Small(
        ("trials=1", "iterations=10", "epochs=1"),
        ("throughput/lenet/over_one", "accuracy/lenet/epochs_by_rate/0.15", "accuracy/resnet/epochs_by_rate/0.02"),
        marks=LONG,
    ),
    "control": Small(
        ("seconds=0.2", "rounds=1", "steps=5", "rate_per_s=100"),
        ("added_ms_per_step", "decisions_per_s", "p99_ms", "ratio_to_bare"),
        marks=LONG,
    ),
    "data": Small(("rounds=1", "megabytes=1"), ("ratio_to_raw", "ratio_to_gloo", "peak_ratio", "tcp_gb_per_s")),
    "divergence": Small(("elements=2", "rounds=1"), ("least_ratio", "gamma_0.9.alignment_0.1/lead_600")),
    "dropcompute": Small(
        ("only=virtual,even", "trials=1", "steps=30", "workers=4", "real_steps=45"),
        ("virtual/predicted", "even/dropped"),
        marks=LONG,
    ),
    "eager": Small(
        ("only=hyperplane,digits,text", "steps=2", "workers=2"),
        ("hyperplane/200_ms/times", "digits/majority_in_time_share", "text/judged_difference"),
        marks=LONG,
    ),
    "eager latency": Small(
        ("only=latency", "trials=1", "processes=3", "rounds=3"),
        ("latency/solo_times", "latency/majority_active"),
        marks=(*LONG, pytest.mark.skipif(not HAS_MPI, reason="no mpirun beside Python")),
    ),
    "page": Small(
        ("workers=3", "pages=2", "seconds=0.5", "pairs=1"),
        ("added_core_share", "rounds_ratio", "dead_after_s"),
        marks=LONG,
    ),
    "fabric": Small(
        ("small=true", "only=sync_max_rel_diff"), ("sync_max_rel_diff 3 workers, 3 servers, 2 aggregators",), marks=LONG
    ),
    "fabric asynchronous": Small(
        ("small=true", "only=delay_excess_max"), ("updates_applied", "applied_share_of_stragglers"), marks=LONG
    ),
    "fabric ingress": Small(
        ("small=true", "only=ingress_bytes_ratio"), ("ingress_time_ratio", "ingress_members_per_sum"), marks=LONG
    ),
    "fabric summing": Small(("small=true", "only=aggregator_peak_tensors"), ("sum_over_receive_time",), marks=LONG),
    "fabric topics": Small(("small=true", "only=lda_rel_gap"), ("pairs/seed 0/pushes_again",), marks=LONG),
    "fabric replica": Small(
        ("small=true", "only=replica_traffic_ratio"), ("divergence_violations", "chain_lost_updates_max"), marks=LONG
    ),
    "faults": Small(
        (),
        ("worker_killed/survived", "host_cut_off/updates_twice", "scheduler_back_after_5s/recovery_p50_s"),
        "--trials 1",
        marks=(*LONG, *HOSTS),
    ),
    "gossip": Small(
        ("trials=1", "learners=[2]", "epochs=2", "steps=10"),
        ("theory/ring_over_random", "epochs/2/rand", "slow/others", "even/adpsgd"),
        marks=LONG,
    ),
    "lda": Small(
        ("seeds=1", "sweeps=2", "workers=2", "topics=5"), ("lda_rel_gap", "pairs/seed 0/one_process"), marks=LONG
    ),
    "links": Small(
        ("seconds=0.05",),
        ("start_s", "change_all_cpu_ms", "10M.1.0/up", "100M.1.0/many_to_one", "cpu_saturated_share"),
        marks=HOSTS,
    ),
    "load": Small(
        ("workers=10", "seconds=3", "settle_s=1", "processes=1"),
        ("refused", "lost", "unanswered", "decisions_per_s", "growth", "scheduler_cpu"),
        marks=LONG,
    ),
    "optimality": Small(
        ("instances=2", "limit_s=1", "fine=1"), ("mean_gap", "bound_mean_gap", "paper_fewer", "proved"), marks=LONG
    ),
    "paper": Small(
        (),
        ("rows/overlap", "rows/asynchronous_vs_ring", "settings/cells", "git_revisions"),
        "--quick --duration 3 --results {folder}",
        marks=(*LONG, *HOSTS, pytest.mark.skipif(not HAS_DIGITS, reason=NO_DIGITS)),
    ),
    "planner": Small(
        ("runs=1", "sizes=[10,100]", "workers=[8]", "ready=false"),
        ("rows/0/order_ms", "rows/1/speedup", "rows/3/total_ms", "growth", "rounds/2/total_ms"),
        marks=LONG,
    ),
    "plans": Small(("problems=20",), ("broken", "asynchronous/mean_ms", "all-reduce/last_ms"), marks=LONG),
    "rounds": Small(
        ("rounds=1", "only=one_at_a_quarter"),
        ("one_at_a_quarter/over_least", "one_at_a_quarter/times_gloo", "one_at_a_quarter/empty_round_ms"),
        marks=(*LONG, *HOSTS),
    ),
    "restart": Small(("outages_s=[0.1]", "trials=1"), ("after_0.1_s/survived", "after_0.1_s/updates_lost"), marks=LONG),
    "silence": Small(
        ("trials=1", "minutes=0.02"),
        ("stopped/asynchronous/survived", "stopped/all_reduce/back_p50_s", "busy/evictions"),
        marks=LONG,
    ),
    "summing": Small(
        ("rounds=1", "shaped_rounds=1", "megabytes=1"),
        ("sum_over_receive_time", "sum_over_receive_time_1gbit", "sum_cpu_s"),
        marks=LONG,
    ),
    "twin": Small(
        ("iterations=1", "wide_iterations=1", "workers=20"),
        ("synchronous/us_per_update", "wide_asynchronous/full_run_s"),
        marks=LONG,
    ),
}


def figure(found: Any, name: str) -> Any:
    """Look a figure up by its name."""
    for part in name.split("/"):
        found = found[int(part) if isinstance(found, list) else part]
    return found


@pytest.mark.parametrize(
    ("name", "small"), [pytest.param(name, small, id=name, marks=small.marks) for name, small in BENCHMARKS.items()]
)
def test_a_benchmark_in_small_gives_all_its_figures(
    request: pytest.FixtureRequest, start: Start, tmp_path: Path, name: str, small: Small
):
    if request.node.get_closest_marker("root"):
        request.getfixturevalue("four_hosts")  # skips where there can be none
    file = tmp_path / "figures.json"
    settings = [word for setting in small.settings for word in ("--set", setting)]
    options = small.options.format(folder=tmp_path / "results").split()

    code, out = start("bench", name.split()[0], "--json", str(file), *settings, *options).finish(LONGEST_S)

    assert code == 0, out
    found = json.loads(file.read_text())
    for wanted in small.figures:
        assert figure(found, wanted) is not None, f"{name} has no {wanted}: {found}"


def test_no_benchmark_is_left_out(start: Start):
    code, out = start("bench", "--help").finish()

    assert code == 0, out
    listed = out.partition("Commands:")[2].partition("Examples:")[0]
    assert set(re.findall(r"^  (\w+) ", listed, re.MULTILINE)) == {name.split()[0] for name in BENCHMARKS}
