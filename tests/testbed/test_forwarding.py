from __future__ import annotations

import os

import numpy as np

from benchmarks.testbed.forwarding import ForwardingFile, by_rate
from benchmarks.testbed.runs import Forwarded, WorkerLog
from benchmarks.testbed.spec import ForwardedByRate
from mlfabric.telemetry.forwarding_log import note_forwarding
from mlfabric.twin.settings import Direction


def _log(rank, forwarded):
    nothing = np.empty(0, dtype=np.int64)
    return WorkerLog(
        rank=rank,
        began_ns=0,
        started_ns=nothing,
        computed_ns=nothing,
        ended_ns=nothing,
        losses=nothing.astype(np.float32),
        overruns=0,
        forwarded=forwarded,
    )


def _came(to, *rows):
    began_ns, n_bytes = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return Forwarded(to=to, began_ns=began_ns, n_bytes=n_bytes)


class _Weather:
    """From 100 ns on the down-link of w1 is at a quarter; up-links are of no matter, and so at a hundredth."""

    def share_at(self, name, direction, time_ns):
        if direction is Direction.UP:
            return 0.01
        return 0.25 if name == "w1" and time_ns >= 100 else 1.0


def test_a_fork_writes_down_what_crossed_a_link_and_its_parent_reads_it():
    with ForwardingFile() as came:
        pid = os.fork()
        if pid == 0:
            came.listen()
            note_forwarding("w1", "w0", 100, 7, 9)
            note_forwarding("w0", "w0", 100, 8, 9)
            note_forwarding("w2", "w0", 50, 10, 12)
            os._exit(0)
        os.waitpid(pid, 0)
        found = came.read("w0")

    assert found.to == "w0"
    assert found.began_ns.tolist() == [7, 10]
    assert found.n_bytes.tolist() == [100, 50]


def test_bytes_count_by_what_the_receivers_link_carried_when_they_began():
    logs = [
        _log(0, _came("w0", (50, 10), (150, 20))),
        _log(1, _came("w1", (99, 30), (100, 40), (160, 5))),
        _log(2, _came("w2")),
    ]
    found = by_rate(logs, _Weather(), began_ns=0, ended_ns=200)

    assert found == ForwardedByRate(link_shares=(0.25, 1.0), n_bytes=(45, 60), messages=(2, 3))
    assert found.share_at_most(0.25) == 45 / 105
    assert found.share_at_most(0.1) == 0


def test_what_begins_before_training_or_after_it_does_not_count():
    found = by_rate([_log(0, _came("w0", (9, 1), (10, 2), (20, 4), (21, 8)))], _Weather(), began_ns=10, ended_ns=20)

    assert found == ForwardedByRate(link_shares=(1.0,), n_bytes=(6,), messages=(2,))


def test_a_system_that_sums_nothing_on_the_way_has_no_figure():
    assert by_rate([_log(0, None), _log(1, None)], _Weather(), began_ns=0, ended_ns=1) is None
    assert by_rate([_log(0, None), _log(1, _came("w0"))], _Weather(), began_ns=0, ended_ns=1) is not None
