"""What really happened to a model that is cut: the witness of its parts, and of what all parts have in common."""

from __future__ import annotations

from collections.abc import Sequence

from mlfabric.protocol import Committed, GetId, ModelVersion, Outcome, TransferId, UpdateId, UpdateKind
from mlfabric.scheduler.shards.parts import part_of, whole_of
from mlfabric.scheduler.state import SchedulerState
from mlfabric.server.actions import ApplyStep, StepKind
from mlfabric.simulator.witness import LONGEST_WAIT_NS, Oddity, Witness

__all__ = ["PartWitness"]


class PartWitness(Witness):
    """Everything that really happened.

    Args:
        shards: how many parts the model has.
    """

    def __init__(self, shards: int) -> None:
        super().__init__()
        self.shards = shards
        self._made: dict[int, frozenset[UpdateId]] = {}
        self._said: dict[UpdateId, Committed] = {}

    def push_of(self, part: UpdateId) -> UpdateId:
        """Return the push that a part belongs to."""
        return whole_of(part, self.shards)

    def parts_of(self, push: UpdateId) -> list[UpdateId]:
        """Return the parts of a push."""
        return [part_of(push, shard, self.shards) for shard in range(self.shards)]

    def begins(self, action: ApplyStep, members: Sequence[UpdateId], others: Sequence[TransferId]) -> None:
        """Check that transfers may be applied together; parts have no order but that of the units."""
        self._levels(action)
        for update, tau in zip(members, self._delays(action, members), strict=True):
            self._may_be_applied(update)
            bound = self._bounds.get(action.model, 0)
            assert 0 <= tau <= bound, f"{update} is applied with delay {tau}; the bound in force is {bound}"
        workers = [update.worker for update in members]
        assert len(set(workers)) == len(workers), f"a unit has two updates of one worker: {members}"

    def _whole(self, model: str) -> str:
        return model.rpartition(".shard")[0]

    def _levels(self, action: ApplyStep) -> None:
        """Let a part count under the epoch that counts for all: another server's, or one above what workers know of."""
        own = self._version_of(action.model)
        if own.epoch < action.version.epoch:
            self._versions[action.model] = ModelVersion(action.version.epoch, own.number)
            self._values[action.model, self._versions[action.model]] = self.weights(action.model, own.number)

    def commits(self, members: Sequence[UpdateId], action: ApplyStep) -> None:
        """Note a step; the same pushes must make this version at all parts."""
        pushes = frozenset(map(self.push_of, members))
        made = self._made.setdefault(action.version.number, pushes)
        assert made == pushes, f"version {action.version} is made of {pushes} at {action.model}; elsewhere of {made}"
        for push in pushes:
            odd = [part for part in self.parts_of(push) if self.truths[part].oddity is not Oddity.NONE]
            assert not odd, f"{push} is committed at {action.model}; there is something wrong with {odd}"
        self._steps.difference_update(self.truths[update].step for update in members)
        if action.kind is StepKind.MEAN:
            self.sums[len(members)] += 1
        super().commits(members, action)

    # Checkpoints

    def rolls_back(self, number: int) -> None:
        """Note that all servers died, and will go on from this version: what was made since is lost."""
        for model in list(self._versions):
            self.resumes(model, number)
        for lost in [made for made in self._made if made > number]:
            del self._made[lost]

    def _counts_on(self, state: SchedulerState, model: str, version: ModelVersion) -> None:
        """Check that what a scheduler takes for the newest version was made.

        The epoch may be that of another part, or one that was named while the scheduler did not know of a loss.
        """
        newest, (by, known) = self._version_of(model), self._known.get(model, (state, version))
        if by is state and version.number == known.number and version.epoch > known.epoch:
            return  # so it only calls what it knew: a server that has died unheard may begin that epoch itself
        if version.epoch > newest.epoch:
            assert version.number <= newest.number, f"the scheduler takes {version} of {model} for made; it is {newest}"
            self._known[model] = (state, version)
            return
        if known.epoch > newest.epoch:
            del self._known[model]
        super()._counts_on(state, model, version)

    def forgets_all(self) -> None:
        """Note that all servers died, and begin anew with nothing."""
        for model in list(self._versions):
            self.forgets(model)
        self._made.clear()

    def ends(self, model: str) -> None:
        """Note that a part of a model that has ended is freed."""
        super().ends(model)
        self._made.clear()

    def _agrees(self, who: str, update: UpdateId, outcome: Outcome) -> None:
        """Check an outcome; what was, or would have been, committed before servers died may be said to be, alike.

        A push that was rolled forward at a part may have made the version there under a later epoch than elsewhere.
        """
        if isinstance(outcome, Committed) and self._is_alike(update, outcome):
            return
        is_gradient = self.truths[update].kind is UpdateKind.GRADIENT
        lost = isinstance(outcome, Committed) and self.is_lost(self.truths[update].model, outcome.version)
        if not (is_gradient and lost and isinstance(outcome, Committed)):
            super()._agrees(who, update, outcome)
            return
        known = [lost for part in self.parts_of(self.push_of(update)) for lost in self.lost.get(part, [])]
        really = known or [self._said.setdefault(self.push_of(update), outcome)]
        assert outcome in really, f"{who} says {outcome} of {update}, which was lost; it was {really}"

    def _is_alike(self, update: UpdateId, outcome: Committed) -> bool:
        """Tell whether a part is committed as another part of its push, except for the epoch."""
        parts = [self.applied.get(part) for part in self.parts_of(self.push_of(update))]
        own = self.applied.get(update)
        return outcome in parts and isinstance(own, Committed) and own.version.number == outcome.version.number

    def settles(self, push: UpdateId, outcome: Outcome) -> None:
        """Check what the handle of a push resolves to: it holds for every part."""
        for part in self.parts_of(push):
            if self.truths[part].kind is UpdateKind.INITIAL:
                self.told[part] = outcome  # one part may have its weights from another worker
            else:
                self.learns(part, outcome)

    def brings(
        self, get: GetId, model: str, version: ModelVersion, values: Sequence[int], after: UpdateId | None
    ) -> None:
        """Check that a get brought one version of every part, with its own push in it."""
        for shard, value in enumerate(values):
            part = None if after is None else self.parts_of(after)[shard]
            name = f"{model}.shard{shard}"
            self._counts_as(name, version)
            self.delivers(get, name, version, value, part)

    def _counts_as(self, part: str, version: ModelVersion) -> None:
        """Note that a part whose server did not begin anew counts, or counted, under the epoch of one that did."""
        if (part, version) in self._values:
            return
        same = (one for name, one in self._values if name == part and one.number == version.number)
        own = sorted((one for one in same if one.epoch < version.epoch), reverse=True)
        if own:
            kept = [one for one in own if not self.is_lost(part, one)]
            self._values[part, version] = self._values[part, (kept or own)[0]]

    def rested(self, state: SchedulerState, now_ns: int) -> None:
        """Check that nobody waits for others while nothing is under way; parts wait until all are asked for."""
        for whole in state.wholes.values():
            if whole.unit is not None or not (whole.is_settled and whole.has_weights) or whole.is_synchronous:
                continue
            if whole.tables[0].missing:
                continue
            if (due_ns := whole.due_ns()) is not None and due_ns - now_ns < LONGEST_WAIT_NS:
                continue
            ready = [push for push, known in whole.open.items() if known.turn and known.doomed is None]
            assert not ready, f"{ready} are complete at all parts, and nothing is done with them"

    def committed(self) -> dict[int, set[str]]:
        """Return by version which workers' pushes made it."""
        found: dict[int, set[str]] = {}
        for update, outcome in self.applied.items():
            assert isinstance(outcome, Committed), "only commits are applied"
            found.setdefault(outcome.version.number, set()).add(update.worker)
        return found
