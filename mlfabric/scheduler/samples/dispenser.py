"""Who trains on which samples: hands out what nobody has, as workers come and go. Pure.

What may be handed out is not remembered but found anew each time: what was not trained on, is not under way, and is
not with a worker that is here. So a sample is with one worker at a time, what a worker that is gone had drawn goes to
others, and so does what a server has lost. A scheduler that begins anew is told by workers what they have, and hands
nothing out before they had time to. Where that is not enough a sample is trained on twice, and counted as repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mlfabric.model.ranges import difference, intersection
from mlfabric.model.samples import LAST_POSITION, MOST_RANGES, NO_SAMPLES, Samples, samples_of, union
from mlfabric.model.specs import Member
from mlfabric.protocol import Commit, DrawAnswer, SamplesGranted, SamplesWanted
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.records import MemberState
from mlfabric.scheduler.samples.sample_table import ModelSamples

__all__ = ["BACK_WITHIN_NS", "Dispenser"]

BACK_WITHIN_NS = 2_000_000_000
"""So long a worker that fell silent keeps what it has drawn, and a scheduler that begins anew waits for workers."""


class Dispenser:
    """Hands out the samples of one model.

    Args:
        context: what all parts of the scheduler share.
        samples: what became of the model's samples.
    """

    def __init__(self, context: Context, samples: ModelSamples) -> None:
        self._context = context
        self._samples = samples
        self._drawn: dict[tuple[str, int], Samples] = {}
        self._begins_ns = 0

    def server_back(self, now_ns: int) -> None:
        """Note that the server's account is known: if it is not new, workers may have drawn from another scheduler."""
        if self._samples.counts != NO_SAMPLES and not self._begins_ns:
            self._begins_ns = now_ns + BACK_WITHIN_NS

    def holds(self, worker: Member, drawn: Samples) -> None:
        """Take over what a worker that (re)joined says it has."""
        self._drawn[worker.name, worker.incarnation] = drawn

    def give_back(self, worker: Member, samples: Samples) -> None:
        """Note that a worker does not have these any more, or drew them in vain."""
        self._take_from((worker.name, worker.incarnation), samples)

    def committed(self, commits: Iterable[Commit]) -> None:
        """Note commits: what is trained on is with nobody any more, also if the server loses it again."""
        for commit in commits:
            self._take_from(commit.update[:2], commit.samples)

    def forget_trained(self) -> None:
        """Do as after all commits that are known of."""
        for who in self._drawn:
            self._take_from(who, self._samples.trained)

    def _take_from(self, who: tuple[str, int], samples: Samples) -> None:
        if who in self._drawn:
            self._drawn[who] = difference(self._drawn[who], samples)

    def draw(self, wanted: SamplesWanted, worker: Member, is_known: bool, now_ns: int) -> SamplesGranted:
        """Hand out samples, or say why not.

        Args:
            wanted: what is wanted.
            worker: by whom, who is here.
            is_known: whether the server has said what was trained on.
            now_ns: the present.
        """
        who = worker.name, worker.incarnation
        self._take_from(who, wanted.returned)
        if not is_known or now_ns < self._begins_ns:
            return self._answer(wanted, (), DrawAnswer.NOT_YET)
        wished = ((0, wanted.limit),) if wanted.limit else ()
        left = difference(wished, self._samples.trained)
        taken = union(self._samples.under_way(), self._with_workers(now_ns))
        granted = difference(left, taken)
        if not wanted.again:
            granted = difference(granted, self._samples.known_dropped)
        granted = _first(granted, wanted.count)
        if granted:
            self._drawn[who] = union(self._drawn.get(who, ()), granted)
            return self._answer(wanted, granted, DrawAnswer.GRANTED)
        may_come_back = intersection(left, taken)
        return self._answer(wanted, (), DrawAnswer.UNDER_WAY if may_come_back else DrawAnswer.OVER)

    def _answer(self, wanted: SamplesWanted, samples: Samples, answer: DrawAnswer) -> SamplesGranted:
        return SamplesGranted(
            to=wanted.worker, serial=wanted.serial, samples=samples, answer=answer, reason=answer.value
        )

    def _with_workers(self, now_ns: int) -> Samples:
        """Return what was drawn by workers that are here, or may be back in a moment."""
        ranges: list[tuple[int, int]] = []
        for who in list(self._drawn):
            record = self._context.members.get(who[0])
            if record is None or record.member.incarnation != who[1] or record.state is MemberState.LEFT:
                del self._drawn[who]
            elif record.state is MemberState.HERE or now_ns < record.since_ns + BACK_WITHIN_NS:
                ranges += self._drawn[who]
        return samples_of(ranges, max(1, len(ranges)))


def _first(samples: Samples, most: int) -> Samples:
    """Return the first so many of these, in not too many ranges."""
    return tuple(_cut(samples[:MOST_RANGES], min(most, LAST_POSITION)))


def _cut(samples: Samples, most: int) -> Iterator[tuple[int, int]]:
    for start, stop in samples:
        if most <= 0:
            return
        yield start, min(stop, start + most)
        most -= stop - start
