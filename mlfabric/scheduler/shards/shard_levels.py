"""Parts of a model that do not stand alike: they can be brought to one version, or are torn. Pure.

What one part has committed and another has not is rolled forward there, if the versions are one apart. If they are
further apart, or what is between them is lost, all servers have to go on from checkpoints of one version; what was
committed at a part since, and is open at another, was *rolled back* then.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from mlfabric.methods.asynchronous import least_workers
from mlfabric.protocol import Instruction, ModelVersion, UpdateId
from mlfabric.scheduler.shards.parts import part_of, whole_of
from mlfabric.scheduler.shards.shard_units import ShardUnits, Stage, Unit

__all__ = ["ShardLevels"]


class ShardLevels(ShardUnits):
    """The parts of a model, the open unit, and whether the parts stand alike."""

    _half: Set[UpdateId] = frozenset()

    def _compare_parts(self) -> None:
        """Find out whether parts stand alike, can be brought to, or are torn."""
        was_torn, self.torn = bool(self.torn), ""
        if not self.is_known:
            return
        if not self.is_of_one_beginning:
            self.torn = self._words()
            return
        if self.unit is not None:
            self.torn = self._lacking(self.unit)
            return
        numbers = [pushes.version.number for pushes in self.tables]
        newest = max(numbers)
        made = next((self._made.get(i, {}).get(newest) for i in range(self.count) if numbers[i] == newest), None)
        if min(numbers) == newest:
            self.torn = self._words() if newest and not self.has_weights else ""
            self._level_epochs()
            if was_torn and not self.torn:
                self._changed, self._has_doomed = None, True
        elif newest - min(numbers) > 1 or not made or not self.has_weights:
            self.torn = self._words()
        else:
            stages = [Stage.COMMITTED if number == newest else Stage.NEW for number in numbers]
            self._open_unit(tuple(sorted(made)), ModelVersion(self.version.epoch, newest), stages)
            for pushes in self.tables:
                if self.spec.tau_max is None:
                    pushes.most_workers = max(pushes.most_workers, least_workers(max(made.values())))

    def _sweep(self) -> Iterator[Instruction]:
        """Look at every push that may be further, first for what is committed at a part, and open at another.

        That was rolled back, if all parts stand alike; until they do it is remembered.
        """
        found = self.open.keys() if self._changed is None else (self._changed | self._half) & self.open.keys()
        committed = {push: self._committed(push) for push in sorted(found - self._initial - self._lost)}
        half = {push: outcome for push, outcome in committed.items() if outcome is not None and not self._is_over(push)}
        self._half = frozenset()
        if self.unit is None and self.is_settled and self.is_uniform:
            for push, outcome in half.items():
                self._lose(push, outcome)
        else:
            self._half = half.keys()
        yield from super()._sweep()

    def _end_unit(self) -> None:
        self._has_doomed |= self.unit is not None and not self._half <= set(self.unit.pushes)
        super()._end_unit()

    def _lacking(self, unit: Unit) -> str:
        """Say which part of a unit that is committed elsewhere will never come; "" if all may come."""
        for shard, stage in enumerate(unit.stages):
            pushes = self.parts[shard].pushes
            if unit.is_decided and pushes.version.number < unit.version.number - 1:
                return self._words()
            if not unit.is_decided or stage is not Stage.NEW:
                continue
            for part in (part_of(push, shard, self.count) for push in unit.pushes):
                planned = pushes.planned.get(part)
                is_there, push = planned is not None and planned.received, whole_of(part, self.count)
                if not is_there and (part in pushes.settled or pushes.settled.is_over(part) or self._is_gone(push)):
                    return self._words()
        return ""

    def _words(self) -> str:
        rows = ", ".join(
            f"part {i} at {pushes.server} "
            + (f"at version {pushes.version.number}" if pushes.initialised else "without weights")
            for i, pushes in enumerate(self.tables)
        )
        return (
            f"{self.name} is torn: {rows}, and what is between them is lost; "
            "stop all servers, and start them from checkpoints of one version"
        )
