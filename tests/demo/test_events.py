"""Workers write events, the demonstration reads them while they are written."""

from __future__ import annotations

import threading

from mlfabric.demo.demo_events import Accuracy, Applied, Event, EventLog, EventTail, Moved, NotApplied, log_path

EVENTS: list[Event] = [
    Moved(worker="worker-0", server="server-0", is_push=True, size_bytes=12, started_ns=1, ended_ns=5),
    Applied(worker="worker-0", version=1, tau=0, pushed_ns=1, at_ns=6),
    NotApplied(worker="worker-0", is_lost=False, cause="DEADLINE_PAST", detail="x", pushed_ns=7, at_ns=8),
    Accuracy(worker="worker-0", version=1, accuracy=0.5, at_ns=9),
]


def test_what_is_written_is_read_once_and_in_order(tmp_path):
    path = log_path(tmp_path, 0)
    tail = EventTail(path)
    assert tail.read() == []
    with EventLog(path) as log:
        for event in EVENTS[:2]:
            log.write(event)
        assert tail.read() == EVENTS[:2]
        for event in EVENTS[2:]:
            log.write(event)
    assert tail.read() == EVENTS[2:]
    assert tail.read() == []


def test_a_line_that_is_still_being_written_waits_for_its_end(tmp_path):
    path = log_path(tmp_path, 0)
    with EventLog(path) as log:
        log.write(EVENTS[1])
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    tail = EventTail(path)
    assert tail.read() == []
    path.write_bytes(whole)
    assert tail.read() == [EVENTS[1]]


def test_two_threads_do_not_tear_each_others_lines(tmp_path):
    path = log_path(tmp_path, 0)
    with EventLog(path) as log:

        def write() -> None:
            for _ in range(500):
                log.write(EVENTS[0])

        threads = [threading.Thread(target=write) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert EventTail(path).read() == [EVENTS[0]] * 1000
