"""What the scheduler knows of the samples of one model: soft, as all that it knows. Pure.

The account is the server's. Here is a copy of it, what is under way, and what is dropped because its worker says so or
is gone: that is told to the server, and told again to one that comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mlfabric.model.ranges import count, difference
from mlfabric.model.samples import MOST_RUNS, NO_SAMPLES, SampleCounts, Samples, samples_of, union
from mlfabric.protocol import Commit, NoteDropped, PushRequested, UpdateId
from mlfabric.scheduler.updates.push_table import PushTable

__all__ = ["ModelSamples"]


class ModelSamples:
    """What became of the samples of one model.

    Args:
        pushes: its updates.

    ``counts`` is the server's account as it was last reported, ``unreported`` what was committed since; ``dropped`` is
    what members said was dropped, and what went with workers that are gone.
    """

    def __init__(self, pushes: PushTable) -> None:
        self.counts = NO_SAMPLES
        self.dropped: Samples = ()
        self.unreported: Samples = ()
        self._trained: Samples = ()
        self._pushes = pushes
        self._open: dict[tuple[str, int], dict[UpdateId, Samples]] = {}

    @property
    def trained(self) -> Samples:
        """What was trained on, as far as it is known by now."""
        return union(self._trained, self.unreported)

    @property
    def known_dropped(self) -> Samples:
        """What was dropped, by the server's account or by the word of members."""
        return union(self.counts.dropped, self.dropped)

    def committed(self, commits: Iterable[Commit]) -> None:
        """Note commits, before the server's account says so."""
        for commit in commits:
            self.unreported = union(self.unreported, commit.samples)

    def reported(self, counts: SampleCounts) -> None:
        """Take over the server's account."""
        self.counts, self._trained = counts, counts.trained
        self.unreported = difference(self.unreported, self._trained)

    def asked(self, event: PushRequested) -> None:
        """Note that an update is under way."""
        who = event.update[:2]
        self._forget_settled(who)
        if event.samples:
            self._open.setdefault(who, {})[event.update] = event.samples

    def under_way(self) -> Samples:
        """Return what updates were computed from that have no outcome yet."""
        for who in list(self._open):
            self._forget_settled(who)
        ranges = [one for updates in self._open.values() for samples in updates.values() for one in samples]
        return samples_of(ranges, max(1, len(ranges)))

    def _forget_settled(self, who: tuple[str, int]) -> None:
        settled, updates = self._pushes.settled, self._open.get(who, {})
        for update in [u for u in updates if u in settled or settled.is_over(u)]:
            del updates[update]
        if not updates:
            self._open.pop(who, None)

    def drop(self, samples: Samples, reason: str) -> Iterator[NoteDropped]:
        """Note samples as dropped, and tell the server what it was not told before."""
        if news := difference(samples, self.dropped):
            self.dropped = union(self.dropped, news)[-MOST_RUNS:]
            yield self._note(news, reason)

    def worker_gone(self, is_gone: Callable[[str, int], bool], reason: str) -> Iterator[NoteDropped]:
        """Note as dropped what workers that are gone had under way; what is committed all the same is trained on.

        Args:
            is_gone: tells that of a worker's name and incarnation.
            reason: why.
        """
        for who in [w for w in self._open if is_gone(*w)]:
            self._forget_settled(who)
            for samples in self._open.pop(who, {}).values():
                yield from self.drop(samples, reason)

    def server_back(self, counts: SampleCounts) -> Iterator[NoteDropped]:
        """Take over the account of a server that (re)joined, and repeat to it what it may have missed."""
        self.unreported = ()
        self.reported(counts)
        if missed := difference(self.dropped, counts.dropped):
            yield self._note(missed, f"the server came back without the word that {count(missed)} samples were dropped")

    def _note(self, samples: Samples, reason: str) -> NoteDropped:
        return NoteDropped(to=self._pushes.server, model=self._pushes.spec.name, samples=samples, reason=reason)
