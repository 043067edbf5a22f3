"""A round in stripes that links have overtaken is given up, done again as a ring, and no link is probed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mlfabric.network import down_link, up_link
from mlfabric.planning import Shape
from mlfabric.protocol import Instruction, Reduce, RoundArrived, RoundId

from .stage import GIGABIT
from .test_probing import PAUSE_MS, Computing
from .test_rounds import BIG, asks, told

NAMES = "abcdefghijkl"
RING_MS = 2 * 11 / 12 * BIG * 8 / (GIGABIT // 4) * 1000
"""About what a ring takes over the slowest link."""


class Uneven(Computing):
    """A job with one slow host, whose rounds go in stripes at first."""

    def __init__(self) -> None:
        super().__init__(NAMES)
        for link in (up_link("h-a"), down_link("h-a")):
            self.state.context.network.set_rate(link, GIGABIT // 4)
        self.number = 0

    @property
    def shape(self) -> Shape:
        running = self.rounds._running
        assert running is not None
        return running.shape

    def begin(self) -> Shape:
        """Compute and begin a round; return how it goes."""
        self.compute()
        self.number += 1
        return self.shape

    def end(self, after_ms: float) -> list[Instruction]:
        """Let all have the result of the present attempt after a while; return what follows the last."""
        self.wait(after_ms)
        self.done += 1
        last: list[Instruction] = []
        for name in self.names:
            assert last == []
            last = self.ask(RoundArrived(worker=name, model="net", round=RoundId(1, self.number)))
        return last


@pytest.fixture
def uneven() -> Uneven:
    """Stripes took a little more than a ring would have twice, so a ring was tried and took less."""
    job = Uneven()
    for _ in range(2):
        assert job.begin() is Shape.STRIPES
        job.end(1.5 * RING_MS)
    assert job.begin() is Shape.RING
    job.end(1.4 * RING_MS)
    return job


def kinds(instructions: Iterable[Instruction]) -> set[str]:
    return {type(one).__name__ for one in instructions}


def test_while_stripes_are_not_trusted_a_ring_is_made_and_nothing_is_probed(uneven) -> None:
    assert uneven.begin() is Shape.RING
    assert kinds(uneven.end(1.4 * RING_MS)) == {"ReduceSettled"}


def until_stripes(job: Uneven) -> list[Instruction]:
    """Make rings until stripes are tried again; return what followed the last one."""
    last: list[Instruction] = []
    for _ in range(100):
        if job.begin() is Shape.STRIPES:
            return last
        last = job.end(1.4 * RING_MS)
    raise AssertionError("stripes were never tried again")


def test_before_stripes_are_tried_again_links_are_probed(uneven) -> None:
    assert kinds(until_stripes(uneven)) == {"ReduceSettled", "Probe"}


def test_one_that_takes_twice_as_long_as_rings_did_is_done_again_as_a_ring(uneven) -> None:
    until_stripes(uneven)
    uneven.wait(2 * 1.4 * RING_MS - 10)
    assert uneven.tick() == []
    uneven.wait(11)
    again = uneven.tick()
    assert told(again) == [("CancelReduce", name) for name in NAMES] + [("Reduce", name) for name in NAMES]
    assert uneven.shape is Shape.RING
    uneven.number += 1
    assert kinds(uneven.end(1.4 * RING_MS)) == {"ReduceSettled"}
    assert uneven.begin() is Shape.RING


def test_a_ring_is_given_up_only_when_it_counts_as_lost(uneven) -> None:
    assert uneven.begin() is Shape.RING
    uneven.wait(9 * RING_MS)
    assert uneven.tick() == []
    uneven.wait(100 * RING_MS)
    assert ("CancelReduce", "a") in told(uneven.tick())


def test_the_first_round_has_a_minute() -> None:
    job = Uneven()
    assert job.begin() is Shape.STRIPES
    job.wait(59_000)
    assert job.tick() == []
    job.wait(2_000)
    assert ("CancelReduce", "a") in told(job.tick())


def test_who_has_not_asked_is_waited_for(uneven) -> None:
    until_stripes(uneven)
    uneven.end(0.5 * RING_MS)
    uneven.wait(PAUSE_MS)
    found: list[Instruction] = []
    for name in NAMES[:-1]:
        found += uneven.ask(asks(name, uneven.done, size_bytes=BIG))
    uneven.wait(PAUSE_MS)
    found += uneven.tick()
    if not any(isinstance(one, Reduce) for one in found):
        pytest.fail(f"the round did not begin without {NAMES[-1]}")
    uneven.wait(100 * RING_MS)
    assert uneven.tick() == []
