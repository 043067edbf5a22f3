"""The commit log as a replica hears of it: what made each version, and which versions were made together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from mlfabric.model.samples import Samples
from mlfabric.protocol import Commit, ModelVersion, UpdateId

__all__ = ["Entry", "commits_of", "entries_of"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A version of the log.

    Args:
        began: the first version that was made together with it.
        ends_group: what was committed together with it ends here.
    """

    version: ModelVersion
    lr: float
    members: tuple[UpdateId, ...]
    taus: tuple[int, ...]
    samples: tuple[Samples, ...]
    began: int
    ends_group: bool


def entries_of(group: tuple[Commit, ...]) -> Iterator[Entry]:
    """Give the versions that were made by what was committed together."""
    first, last = group[0].version.number, group[-1].version.number
    for version, step in groupby(group, key=lambda commit: commit.version):
        commits = list(step)
        yield Entry(
            version,
            commits[0].lr,
            tuple(c.update for c in commits),
            tuple(c.tau for c in commits),
            tuple(c.samples for c in commits),
            first,
            version.number == last,
        )


def commits_of(entries: Iterable[Entry], server_epoch: int) -> Iterator[tuple[Commit, ...]]:
    """Give what was committed together, under another server epoch."""
    group: list[Commit] = []
    for entry in entries:
        version = ModelVersion(server_epoch, entry.version.number)
        group += [
            Commit(update=update, version=version, tau=tau, lr=entry.lr, step_norm=0.0, samples=samples)
            for update, tau, samples in zip(entry.members, entry.taus, entry.samples, strict=True)
        ]
        if entry.ends_group:
            yield tuple(group)
            group = []
