from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.testbed.catalogue import SYSTEMS
from benchmarks.testbed.comparing import Measured
from benchmarks.testbed.further_rows import backups, forwarded, reporting_lag, topics
from benchmarks.testbed.judging import Curve
from benchmarks.testbed.runs import BackupCost
from benchmarks.testbed.spec import ForwardedByRate
from tests.testbed.made_up import run_of

TARGET = 0.88


def _run(system, seconds_per_iteration=0.5, *, seed=0, cell="C1-N1", **changes):
    return replace(run_of(system, seconds_per_iteration, seed=seed, cell=cell), **changes)


def _sent(slow_bytes, fast_bytes):
    return ForwardedByRate(link_shares=(0.25, 0.33), n_bytes=(slow_bytes, fast_bytes), messages=(1, 2))


def test_what_went_behind_slow_links_is_counted_in_n2_over_seeds():
    runs = [
        _run("fabric-sync", cell="C2-N2", forwarded=_sent(2, 98)),
        _run("fabric-sync", cell="C2-N2", seed=1, forwarded=_sent(4, 96)),
        _run("fabric-sync", cell="C2-N3", forwarded=_sent(90, 10)),
        _run("fabric-async", cell="C1-N2", forwarded=_sent(1, 99)),
        _run("tree", cell="C2-N2", forwarded=_sent(9, 91)),
    ]
    row = forwarded(Measured(runs), TARGET)

    assert row["systems"]["fabric-sync"]["share"]["mean"] == pytest.approx(0.03)
    assert row["systems"]["fabric-sync"]["messages"] == 6
    assert row["systems"]["tree"]["share"]["mean"] == pytest.approx(0.09)
    assert row["systems"]["tree"]["reached"] is None
    assert row["reached"] is True


def test_more_than_three_percent_behind_slow_links_is_too_much():
    runs = [
        _run("fabric-sync", cell="C2-N2", forwarded=_sent(4, 96)),
        _run("fabric-async", cell="C2-N2", forwarded=_sent(0, 100)),
    ]
    assert forwarded(Measured(runs), TARGET)["reached"] is False
    assert forwarded(Measured(runs[1:]), TARGET)["reached"] is None


@pytest.mark.parametrize(("lag_s", "reached"), [(0.535, True), (0.545, False)])
def test_a_late_monitor_may_cost_7_6_percent_of_an_iteration(lag_s, reached):
    runs = [
        _run(name, s, cell=cell)
        for cell in ("C1-N2", "C3-N2")
        for name, s in (("fabric-async", 0.5), ("fabric-lag", lag_s))
    ]
    row = reporting_lag(Measured(runs), TARGET)

    assert row["longer"]["mean"] == pytest.approx(lag_s / 0.5 - 1)
    assert set(row["cells"]) == {"C1-N2", "C3-N2"}
    assert row["reached"] is reached


def _topics_run(system, *, seconds, end):
    """A run whose log-likelihood grows evenly from -8 to ``end``, in so many seconds."""
    shares = [i / 20 for i in range(21)]
    curve = Curve(
        time_s=tuple(seconds * share for share in shares),
        gradients=tuple(range(0, 630, 30)),
        accuracy=tuple(-8 + (end + 8) * share for share in shares),
    )
    return _run(system, curve=curve)


def test_topics_are_compared_by_the_time_to_what_the_lesser_run_reaches():
    """The server's run gains half of what ours does, for which ours needs half of its 40 s."""
    runs = [
        _topics_run("lda-ring", seconds=80, end=-7.0),
        _topics_run("lda-async", seconds=40, end=-7.0),
        _topics_run("lda-ps-async", seconds=160, end=-7.5),
    ]
    row = topics(Measured(runs), TARGET)

    assert row["time_saved_against_ring"]["mean"] == pytest.approx(0.5)
    assert row["times_as_fast_as_asynchronous"]["mean"] == pytest.approx(8.0)
    assert row["reached"] is True

    runs[1] = _topics_run("lda-async", seconds=70, end=-7.0)
    assert topics(Measured(runs), TARGET)["reached"] is False


def test_the_last_slow_progress_does_not_decide():
    """Ours has 95 % of it after half of its time, the ring's grows evenly."""
    ours = _topics_run("lda-async", seconds=40, end=-7.0)
    shares = [0.95 * min(1.0, i / 10) + max(0, i - 10) * 0.005 for i in range(21)]
    ours = replace(ours, curve=replace(ours.curve, accuracy=tuple(-8 + share for share in shares)))
    row = topics(Measured([_topics_run("lda-ring", seconds=80, end=-7.0), ours]), TARGET)

    assert row["time_saved_against_ring"]["mean"] == pytest.approx(1 - 20 / 76)
    assert row["reached"] is None


def _backed_up(system, added_ms, n_bytes):
    """A run of 60 updates of 30 workers."""
    cost = BackupCost(n_bytes=n_bytes, disk_s=0.2 if system.startswith("checkpoint") else 0.0)
    return _run(system, 0.5 + 0.030 * added_ms, backup=cost)


def _backups(**added_ms):
    bytes_of = {"replica-strict": 600, "replica-20": 100}
    runs = [
        _backed_up(name.replace("_", "-"), ms, bytes_of.get(name.replace("_", "-"), 300))
        for name, ms in added_ms.items()
    ]
    return backups(Measured([_run("fabric-async"), *runs]), TARGET)


def test_a_backup_costs_bytes_per_update_and_time_per_commit():
    row = _backups(replica_strict=4, replica_1=1, replica_20=0.2, chain=6.5, checkpoint_1=6.5, checkpoint_20=0.4)

    assert set(row["systems"]) == {name for name, system in SYSTEMS.items() if system.backup.value != "none"}
    assert row["systems"]["replica-strict"]["bytes_per_update"] == 10
    assert row["systems"]["chain"]["added_ms_per_commit"]["mean"] == pytest.approx(6.5)
    assert row["systems"]["checkpoint-1"]["disk_ms"] == pytest.approx(200)
    assert row["bytes_of_strict_over_bounded"]["mean"] == pytest.approx(6)
    assert row["chain_over_replica"] == pytest.approx(32.5)
    assert row["checkpoint_over_replica"] == pytest.approx(6.5)
    assert row["reached"] is True


@pytest.mark.parametrize(
    "changed", [{"replica_20": 0.3}, {"chain": 5.0}, {"replica_1": 1.2}, {"checkpoint_1": 5.0}], ids=str
)
def test_each_of_its_figures_must_be_reached(changed):
    figures = {"replica_strict": 4, "replica_1": 1, "replica_20": 0.2, "chain": 6.5, "checkpoint_1": 6.5}

    assert _backups(**(figures | changed))["reached"] is False


def test_a_replica_that_adds_nothing_is_any_number_of_times_as_cheap():
    row = _backups(replica_strict=4, replica_1=-0.1, replica_20=-0.2, chain=1, checkpoint_1=1)

    assert row["chain_over_replica"] is None
    assert row["reached"] is True
    nothing_added = _backups(replica_strict=4, replica_1=-0.1, replica_20=-0.2, chain=-0.1, checkpoint_1=1)
    assert nothing_added["reached"] is False, "a chain that adds nothing either is as cheap"


def test_without_its_runs_a_backup_has_no_verdict():
    assert _backups(replica_strict=4)["reached"] is None
