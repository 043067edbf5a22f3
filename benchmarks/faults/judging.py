"""What became of every update, found out from the weights, and compared with what everybody says of it. Pure.

What was applied is read from the final weights alone (``ledger``). The workers' own lines say what was pushed and what
they were told; the commit log says what the server holds to have done. Any two of the three must agree.

A server that goes on from a checkpoint begins an epoch, and its first version follows that of the checkpoint: the
``base`` of the epoch. What earlier epochs committed beyond it is gone from the log as from the weights. Those updates
are the only ones that may be lost; everything else that is wrong is a broken bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.faults.ledger import Contents, Ledger
from benchmarks.faults.logs import Entry, Got, Joined, Line, Pushed, Told, What
from mlfabric.protocol import ModelVersion

__all__ = ["Evidence", "Verdict", "Writing", "judge"]

TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What one worker wrote down.

    Args:
        name: of the worker.
        writer: its part of the ledger.
        must_commit: whether each of its updates has to be committed if anything is said of it.
    """

    name: str
    writer: int
    lines: Sequence[Line]
    must_commit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is left of a run.

    Args:
        entries: of all commit logs, in any order.
        final: the model at the end.
        most_lost: how many updates may be lost whenever another server goes on; None for any number.
    """

    ledger: Ledger
    writings: Sequence[Writing]
    entries: Sequence[Entry]
    final: Contents
    most_lost: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came out.

    Args:
        committed: updates that are in the final model.
        lost: updates whose workers were told that they were committed, and which are not in the final model.
        twice: how often an update was applied that had been applied before.
        broken: bounds and promises that do not hold, in words.
    """

    committed: int
    lost: int
    twice: int
    broken: tuple[str, ...]


class _Epochs:
    """Which of the versions that were committed are in the final model."""

    def __init__(self, entries: Sequence[Entry], final: ModelVersion) -> None:
        self._bases = {final.epoch: final.number}
        for entry in entries:
            epoch = entry.version.epoch
            self._bases[epoch] = min(self._bases.get(epoch, entry.before), entry.before)

    def base_after(self, epoch: int) -> float:
        """Return the number of the last version of an epoch that later ones went on from; infinite if there is none."""
        return min((base for later, base in self._bases.items() if later > epoch), default=float("inf"))

    def holds(self, version: ModelVersion) -> bool:
        """Tell whether the final model goes on from a version."""
        return version.number <= self.base_after(version.epoch)


def judge(evidence: Evidence) -> Verdict:
    """Find out what became of every update."""
    epochs = _Epochs(evidence.entries, evidence.final.version)
    kept = sorted((e for e in evidence.entries if epochs.holds(e.version)), key=lambda entry: entry.version.number)
    sizes = {entry.version: len(entry.updates) for entry in kept}
    broken = [*_of_model(evidence), *_of_log(kept, evidence.final.version), *_of_lost(evidence, kept)]
    logged = Counter(worker for entry in kept for worker, _, _ in entry.updates)
    committed = lost = twice = 0
    for writing in evidence.writings:
        found = _of_writing(evidence, writing, epochs, sizes)
        committed, lost, twice = committed + found.committed, lost + found.lost, twice + found.twice
        broken += [f"{writing.name}: {text}" for text in found.broken]
        times = found.committed + found.twice
        if times != logged[writing.name]:
            broken.append(f"{writing.name}: the weights hold {times} updates of it, the log {logged[writing.name]}")
    strangers = sorted(logged.keys() - {writing.name for writing in evidence.writings})
    broken += [f"the log has updates of {name}, who has pushed none" for name in strangers]
    return Verdict(committed=committed, lost=lost, twice=twice, broken=tuple(broken))


def _of_model(evidence: Evidence) -> Iterator[str]:
    """Yield what is wrong with the final model in itself."""
    version, marks, ballast = evidence.final
    if flaw := evidence.ledger.flaw(ballast, version.number):
        yield f"the final model: {flaw}"
    try:
        parts = [evidence.ledger.applied(marks, i) for i in range(evidence.ledger.writers)]
    except ValueError:
        return  # said of the writer
    total = float(np.sum(parts))
    if abs(total - version.number) > TOLERANCE:
        yield f"the final model: version {version.number} holds {total:g} updates"


def _of_log(kept: Sequence[Entry], final: ModelVersion) -> Iterator[str]:
    """Yield what is wrong with the commits that are in the final model, by their versions."""
    number = 0
    for entry in kept:
        if entry.before != number:
            yield f"the log: version {entry.version.number} follows {number}, of {len(entry.updates)} updates"
        number = entry.version.number
    if number != final.number:
        yield f"the log ends at version {number}, the final model is {final.number}"
    ids = Counter(update for entry in kept for update in entry.updates)
    yield from (f"the log has {update} {count} times" for update, count in ids.items() if count > 1)


def _of_lost(evidence: Evidence, kept: Sequence[Entry]) -> Iterator[str]:
    """Yield at which server epochs more was lost than the bound of a replica allows."""
    there = {update for entry in kept for update in entry.updates}
    lost = Counter(entry.version.epoch for entry in evidence.entries for u in entry.updates if u not in there)
    for epoch, count in sorted(lost.items()):
        if evidence.most_lost is not None and count > evidence.most_lost:
            yield f"{count} updates of server epoch {epoch} were lost; the bound is {evidence.most_lost}"


def _of_writing(evidence: Evidence, writing: Writing, epochs: _Epochs, sizes: dict[ModelVersion, int]) -> Verdict:
    """Find out what became of one worker's updates."""
    told = {line.update: line for line in writing.lines if isinstance(line, Told)}
    pushed = {line.update: line for line in writing.lines if isinstance(line, Pushed)}
    broken = [*_of_gets(writing.lines, epochs), *_of_delays(writing.lines, pushed, told)]
    try:
        marks = evidence.ledger.applied(evidence.final.marks, writing.writer)
    except ValueError as error:
        return Verdict(committed=0, lost=0, twice=0, broken=(*broken, str(error)))
    lost = twice = committed = 0
    for update, mark in enumerate(marks):
        times = _times(float(mark), sizes.get(told[update].version) if update in told else None, evidence.ledger)
        committed += times > 0
        twice += max(0, times - 1)
        if times > 0 and update not in pushed:
            broken.append(f"update {update} was applied, and never pushed")
        if update in told:
            lost += times == 0 and told[update].what is What.COMMITTED
            broken += _of_outcome(told[update], times, epochs, must_commit=writing.must_commit)
    return Verdict(committed=committed, lost=lost, twice=twice, broken=tuple(broken))


def _times(mark: float, size: int | None, ledger: Ledger) -> int:
    """Return how often an update was applied; of one whose version nobody knows, whether it was.

    Args:
        mark: what the ledger says of it.
        size: how many updates its version is made of; None if it is not known.
    """
    if not ledger.is_mean:
        return int(mark)
    return round(mark * size) if size is not None else int(mark > TOLERANCE)


def _of_outcome(told: Told, times: int, epochs: _Epochs, *, must_commit: bool) -> Iterator[str]:
    """Yield what is wrong with what a worker was told."""
    if told.what is What.COMMITTED and times == 0 and epochs.holds(told.version):
        yield f"update {told.update} was committed as {tuple(told.version)}, and is not in the final model"
    if told.what is What.DROPPED and times > 0:
        yield f"update {told.update} was applied, and its worker was told that it was dropped ({told.detail})"
    if must_commit and told.what is not What.COMMITTED:
        yield f"update {told.update} was {told.what.value}: {told.detail}"


def _of_gets(lines: Sequence[Line], epochs: _Epochs) -> Iterator[str]:
    """Yield what is wrong with the models that a worker got: torn, older than one before, without its own update."""
    least = ModelVersion(0, 0)
    for line in lines:
        if isinstance(line, Told) and line.what is What.COMMITTED:
            least = max(least, line.version)
        elif isinstance(line, Got):
            if line.flaw:
                yield line.flaw
            if line.version < least:
                yield f"it got version {tuple(line.version)} after {tuple(least)}"
            elif line.version.epoch > least.epoch and line.version.number < min(
                least.number, epochs.base_after(least.epoch)
            ):
                yield f"it got version {tuple(line.version)}, which is before what {tuple(least)} went on as"
            least = max(least, line.version)


def _of_delays(lines: Sequence[Line], pushed: dict[int, Pushed], told: dict[int, Told]) -> Iterator[str]:
    """Yield the delays that are above the bound, or other than what the versions say."""
    bound = max((line.tau_max for line in lines if isinstance(line, Joined)), default=0)
    for update, line in told.items():
        if line.what is not What.COMMITTED:
            continue
        base = pushed[update].computed_from
        delay = line.version.number - 1 - base.number
        if not 0 <= line.tau <= bound:
            yield f"update {update} was applied with delay {line.tau}; the bound is {bound}"
        if line.version.epoch == base.epoch and delay != line.tau:
            yield f"update {update}, of version {base.number}, made {line.version.number}: no delay of {line.tau}"
