"""The witness: knows what really happened, and compares it with what everybody says (design, section 1).

It takes nothing from the state machines on trust: what an update is, when it was applied, who was told what are written
down where they happen, at the workers' handles and at the store.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from mlfabric.protocol import (
    CommitsReported,
    Committed,
    Drop,
    Dropped,
    Expect,
    GetId,
    Instruction,
    MemberEvent,
    ModelVersion,
    Outcome,
    Resolve,
    TransferEnded,
    UpdateId,
    UpdateKind,
)
from mlfabric.scheduler.state import SchedulerState

__all__ = ["Oddity", "Truth", "Witness"]


class Oddity(Enum):
    """What is wrong with an update that ought to be refused."""

    NONE = "nothing"
    NAN = "its norm is NaN"
    SIZE = "its size is not the model's"
    LAYOUT = "its layout is not the model's"
    FUTURE = "it was computed from a version that does not exist"
    OVERFLOW = "its step would make the weights infinite"
    CHANGED = "its tensors are changed while it is sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What an update is: the integer that it adds to the weights, and what it was computed from."""

    model: str
    step: int
    computed_from: ModelVersion
    kind: UpdateKind
    oddity: Oddity = Oddity.NONE


class Witness:
    """Everything that really happened."""

    def __init__(self) -> None:
        self.truths: dict[UpdateId, Truth] = {}
        self.applied: dict[UpdateId, Committed] = {}
        self.installed: dict[str, UpdateId] = {}
        self.told: dict[UpdateId, Outcome] = {}
        self.dropped: Counter[str] = Counter()
        self.gets = 0
        self._versions: dict[str, ModelVersion] = {}
        self._weights: dict[str, list[int]] = {}
        self._steps: set[int] = set()
        self._bounds: dict[str, int] = {}
        self._expected: dict[UpdateId, Expect] = {}

    # At the scheduler

    def heard(self, state: SchedulerState, event: MemberEvent, instructions: list[Instruction]) -> None:
        """Check what the scheduler says of outcomes, and what it remembers of those that it was just told."""
        for name, model in state.models.items():
            self._bounds[name] = max(self._bounds.get(name, 0), model.pushes.tau_max)
        for instruction in instructions:
            if isinstance(instruction, Drop):
                self._agrees("the scheduler", instruction.update, Dropped(cause=instruction.cause))
            elif isinstance(instruction, Resolve):
                self._agrees("the scheduler", instruction.update, instruction.outcome)
        if isinstance(event, CommitsReported):
            self._remembered(state, [c.update for c in event.commits])
        elif isinstance(event, TransferEnded) and isinstance(event.transfer, UpdateId):
            self._remembered(state, [event.transfer])

    def rested(self, state: SchedulerState) -> None:
        """Check that nobody waits for others while nothing is under way."""
        for model in state.models.values():
            pushes = model.pushes
            idle = pushes.initialised and not pushes.awaited and not pushes.planned
            if idle and state.context.is_here(pushes.server):
                assert not pushes.waiting, f"{list(pushes.waiting)} wait though nothing is under way to {pushes.server}"

    def remembered(self, state: SchedulerState) -> None:
        """Check every outcome that the scheduler remembers."""
        self._remembered(state, list(self.truths))

    def _remembered(self, state: SchedulerState, updates: list[UpdateId]) -> None:
        for update in updates:
            model = state.models.get(self.truths[update].model)
            outcome = model.pushes.settled.get(update) if model is not None else None
            if outcome is not None:
                self._agrees("the scheduler's memory", update, outcome)

    # At the server

    def expected(self, order: Expect) -> None:
        """Note what a server was told last about an update."""
        self._expected[order.update] = order

    def begins(self, update: UpdateId, version: ModelVersion, others: list[UpdateId]) -> None:
        """Check that an update may be applied now, making ``version``, while ``others`` are there."""
        truth, order = self.truths[update], self._expected[update]
        assert update not in self.applied, f"{update} is applied twice"
        assert truth.oddity in (Oddity.NONE, Oddity.OVERFLOW), f"{update} is applied though {truth.oddity.value}"
        told = self.told.get(update)
        assert not isinstance(told, Dropped), f"{update} is applied though its worker was told {told}"
        before = [o for o in others if self._expected[o].seq < order.seq]
        assert not before, f"{update} (seq {order.seq}) is applied before {before}, which are earlier in the plan"
        tau = version.number - 1 - truth.computed_from.number
        bound = min(order.tau_max, self._bounds[truth.model])
        assert 0 <= tau <= bound, f"{update} is applied with delay {tau}; the bound in force is {bound}"

    def commits(self, update: UpdateId, version: ModelVersion, tau: int) -> None:
        """Note that an update was applied, and check what the server makes of it."""
        truth = self.truths[update]
        former = self._versions.get(truth.model, ModelVersion(1, 0))
        assert version == (former.epoch, former.number + 1), f"{update} made version {version} after {former}"
        expected = former.number - truth.computed_from.number
        assert tau == expected, f"{update} was committed with delay {tau}; it is {expected}"
        assert truth.step not in self._steps, f"what {update} brings is in the weights already"
        self._steps.add(truth.step)
        self._versions[truth.model] = version
        self._weights[truth.model].append(self._weights[truth.model][-1] + truth.step)
        self.applied[update] = Committed(version=version, tau=tau)

    def installs(self, update: UpdateId) -> None:
        """Note whose weights a model began with."""
        truth = self.truths[update]
        self.installed[truth.model] = update
        self._weights[truth.model] = [truth.step]

    # At the workers

    def learns(self, update: UpdateId, outcome: Outcome) -> None:
        """Check what the handle of a push resolves to."""
        assert update not in self.told, f"{update} was settled twice: {self.told[update]}, {outcome}"
        self.told[update] = outcome
        self._agrees("its worker", update, outcome)
        if isinstance(outcome, Dropped):
            self.dropped[outcome.cause.name] += 1
        elif self.truths[update].oddity is not Oddity.NONE:
            raise AssertionError(f"{update} was committed though {self.truths[update].oddity.value}")

    def delivers(self, get: GetId, model: str, version: ModelVersion, value: int, after: UpdateId | None) -> None:
        """Check that a get follows its update and is a version that was made."""
        self.gets += 1
        newest = self._versions.get(model, ModelVersion(1, 0))
        assert version <= newest, f"{get} brought {version}; the newest is {newest}"
        assert value == self.weights(model, version.number), f"{get} brought version {version} torn"
        committed = self.applied.get(after) if after is not None else None
        assert committed is None or version >= committed.version, (
            f"{get} brought {version} without {after}, {committed}"
        )

    def weights(self, model: str, number: int) -> int:
        """Return what the weights of a version are: the first ones and the steps since, each once."""
        return self._weights[model][number]

    def _agrees(self, who: str, update: UpdateId, outcome: Outcome) -> None:
        truth = self.truths[update]
        if truth.kind is UpdateKind.INITIAL:
            is_here = self.installed.get(truth.model) == update
            assert isinstance(outcome, Committed) == is_here, f"{who} says {outcome} of the first weights {update}"
            return
        really = self.applied.get(update)
        if isinstance(outcome, Committed):
            assert outcome == really, f"{who} says {outcome} of {update}; it is {really}"
        else:
            assert really is None, f"{who} says {outcome} of {update}; it is {really}"
