"""Clocks against a count by hand of what was asked for and settled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.methods import Clocks
from mlfabric.protocol import GetId, GetRequested, ModelVersion, UpdateId

WORKERS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "ask", "settle"]), st.sampled_from(WORKERS), st.integers(0, 5)),
    max_size=60,
)


def played(steps: list[tuple[str, str, int]]) -> tuple[Clocks, dict[str, int], dict[str, set[int]]]:
    """Play steps; return the clocks, and by hand what each worker has finished and has open."""
    clocks, finished, asked = Clocks(), dict[str, int](), dict[str, set[int]]()
    for what, worker, counter in steps:
        update = UpdateId(worker, 1, counter)
        match what:
            case "join":
                clocks.join(worker)
                if worker not in finished:
                    finished[worker], asked[worker] = min(finished.values(), default=0), set()
            case "leave":
                clocks.leave(worker)
                finished.pop(worker, None)
                asked.pop(worker, None)
            case "ask":
                clocks.ask(update)
                if worker in asked:
                    asked[worker].add(counter)
            case _:
                clocks.settle(update)
                if counter in asked.get(worker, ()):
                    asked[worker].remove(counter)
                    finished[worker] += 1
    return clocks, finished, asked


@given(STEPS)
def test_each_update_that_was_asked_for_counts_once(steps):
    clocks, finished, _ = played(steps)
    assert {worker: clocks.finished(worker) for worker in clocks} == finished
    assert clocks.slowest == min(finished.values(), default=0)
    assert len(clocks) == len(finished)


@given(STEPS, st.sampled_from(WORKERS), st.integers(0, 5))
def test_an_update_s_clock_counts_its_worker_s_earlier_ones(steps, worker, counter):
    clocks, finished, asked = played(steps)
    update = UpdateId(worker, 1, counter)
    earlier = len([c for c in asked.get(worker, ()) if c < counter])
    assert clocks.before(update) == finished.get(worker, 0) + earlier
    get = GetRequested(get=GetId(worker, 1, 0), model="net", min_version=ModelVersion(0, 0), after_update=update)
    is_open = counter in asked.get(worker, ())
    assert clocks.at(get) == finished.get(worker, 0) + (earlier + 1 if is_open else 0)
