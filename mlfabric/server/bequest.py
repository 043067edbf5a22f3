"""What a replica goes on with as a server: its primary's log as far as it has that, and what it made since. Pure.

The log ends with what the primary has told of. After that the replica makes versions of what the primary may have
committed, or not (``scheduler/followers/untold_commits.py``); so these are of its own server epoch, which begins where
the log ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mlfabric.model.samples import SampleAccount, SampleCounts, Samples, samples_of
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import AppliedIds, Commit, GroupOf, ModelVersion, ServerHolds, UpdateId
from mlfabric.server.applied import AppliedSet
from mlfabric.server.replica_log import Entry, commits_of

__all__ = ["Bequest"]


class Bequest:
    """What is left to a replica of one model.

    ``certain`` is the last version of the log, once the model goes further than that; None until then.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.certain: ModelVersion | None = None
        self._spec = spec
        self._epochs: tuple[ModelVersion, ...] = ()
        self._behind: dict[UpdateId, tuple[ModelVersion, Samples]] = {}
        self._made: list[Entry] = []

    def begin(self, holds: ServerHolds) -> None:
        """Begin with what the primary holds."""
        self.certain = None
        self._epochs = holds.began
        self._behind.clear()
        self._made.clear()

    def ends(self, log: Iterable[Entry], known: Iterable[Commit]) -> None:
        """Note what the primary has told of, and the model may not come to.

        Args:
            log: that is here.
            known: what the scheduler knows of.
        """
        for entry in log:
            for update, samples in zip(entry.members, entry.samples, strict=True):
                self._behind[update] = entry.version, samples
        self._behind.update({commit.update: (commit.version, commit.samples) for commit in known})

    def applied(self, entries: Sequence[Entry]) -> None:
        """Note what the model has made."""
        if self.certain is not None:
            self._made += entries

    def made(self, server_epoch: int) -> Iterator[GroupOf]:
        """Give what was made since the end of the log, under a new server epoch."""
        for commits in commits_of(self._made, server_epoch):
            yield GroupOf(self._spec.name, commits)

    def holds(
        self, server: str, server_epoch: int, version: ModelVersion, applied: AppliedSet, samples: SampleAccount
    ) -> ServerHolds:
        """Return what the replica goes on with.

        Args:
            server: whose place it takes.
            server_epoch: under which its versions go on.
            version, applied, samples: of the model.
        """
        kept = self.certain or version
        return ServerHolds(
            server=server,
            spec=self._spec,
            version=ModelVersion(server_epoch, version.number),
            initialised=True,
            applied=tuple(_under(ids, server_epoch, kept.number) for ids in applied.snapshot()),
            epoch_base=kept.number,
            earlier=self._epochs,
            samples=self._counts(kept, applied, samples),
        )

    def _counts(self, kept: ModelVersion, applied: AppliedSet, samples: SampleAccount) -> SampleCounts:
        """Count as lost what was made of the log after the last version that was kept, unless it was made once more.

        The primary may have gone on from there under a later epoch.
        """
        behind = {u: at for u, at in self._behind.items() if at[0] > kept and at[0].number > kept.number}
        account = SampleAccount(samples.counts())
        if behind:
            lost = [one for update, (_, own) in behind.items() if not applied.knows(update) for one in own]
            last = max(version for version, _ in behind.values())
            account.lose(samples_of(lost, max(1, len(lost))), last.epoch, kept.number, last.number)
        return account.counts()


def _under(ids: AppliedIds, epoch: int, after: int) -> AppliedIds:
    """Let what made versions after a number have made them under another epoch."""
    recent = ((n, ModelVersion(epoch, v.number) if v.number > after else v, tau) for n, v, tau in ids.recent)
    return replace(ids, recent=tuple(recent))
