"""What was decided, and what came of it: one entry for each update, get and round that is over. Shell-level.

It observes the state machine from outside, as ``Meter`` does, and decides nothing. Times are those of this process's
clock, shown as wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mlfabric import clock
from mlfabric.network import Profile, down_link, up_link
from mlfabric.protocol import (
    CancelReduce,
    CommitsReported,
    Drop,
    DropReason,
    Expect,
    FetchState,
    GetId,
    Instruction,
    MemberEvent,
    MemberLeft,
    MemberLost,
    MemberSilent,
    PassReduce,
    PushRequested,
    Reduce,
    ReduceFailed,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundId,
    Serve,
    SetThreshold,
    StateArrived,
    SumId,
    TransferEnd,
    TransferEnded,
    UpdateId,
    Welcome,
)
from mlfabric.scheduler.rounds.step_rounds import StepRounds
from mlfabric.scheduler.shards.parts import name_of_whole
from mlfabric.scheduler.state import SchedulerState
from mlfabric.telemetry.history import Entry, History

__all__ = ["Journal"]

LEVELS_EVERY_NS = 2_000_000_000
MOST_ENDED = 1000


@dataclass(slots=True, kw_only=True)
class _Update:
    model: str
    asked_ns: int
    planned: Profile | None = None
    sum: SumId | None = None
    reason: str = ""
    received_ns: int = 0


@dataclass(slots=True, kw_only=True)
class _Get:
    model: str
    planned: Profile
    reason: str


@dataclass(slots=True, kw_only=True)
class _Round:
    model: str
    version: int
    began_ns: int
    planned_ns: int
    reason: str
    size_bytes: int
    members: list[str] = field(default_factory=list)
    receivers: list[str] = field(default_factory=list)
    arrived_ns: dict[str, int] = field(default_factory=dict)
    delays: dict[str, int] = field(default_factory=dict)


class Journal:
    """Writes down what was decided.

    Args:
        history: where what is over goes.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._noted_ns = 0
        self._offset_ns = clock.wall_ns() - clock.monotonic_ns()
        self._updates: dict[UpdateId, _Update] = {}
        self._gets: dict[GetId, _Get] = {}
        self._rounds: dict[RoundId, _Round] = {}
        self._names: set[str] = set()
        self._models: dict[str, set[str]] = {}
        self._ended: dict[str, set[str]] = {}
        """By the names of models that are there, and of the last ones that were, those of their parts."""
        self._computed_from: dict[str, int] = {}
        """By worker, the version that what it offers was computed from."""
        self._states: dict[str, tuple[str, int]] = {}
        """Who fetches the model from whom, and since when."""

    def ms(self, at_ns: int) -> float:
        """Return a time of this process's clock as wall time; 0 stands for none."""
        return round((at_ns + self._offset_ns) / 1e6, 1) if at_ns else 0

    def open(self, now_ns: int) -> list[Entry]:
        """Return what is not over, in the form of entries that have not ended."""
        updates = (self._update(update, one, 0, "") for update, one in self._updates.items())
        gets = (self._get(get, one, 0, "") for get, one in self._gets.items() if one.planned.start_ns <= now_ns)
        rounds = (self._round(round_id, one, 0, "", "") for round_id, one in self._rounds.items())
        return [*updates, *gets, *rounds]

    def observe(
        self, state: SchedulerState, event: MemberEvent, instructions: Iterable[Instruction], now_ns: int
    ) -> None:
        """Note an event that the state machine has handled, and what it decided then."""
        if state.models.keys() | state.reductions.keys() != self._names:
            for entry in self._begin_anew(state, now_ns):
                self.history.add(entry)
        for entry in self._told(event, now_ns):
            self.history.add(entry)
        for instruction in instructions:
            for entry in self._decided(state, instruction, now_ns):
                self.history.add(entry)

    def survey(self, state: SchedulerState, mean_plan_ms: float) -> None:
        """Note how far models are, and what links carry; forget what will not end any more.

        Args:
            mean_plan_ms: what a plan took on average.
        """
        now_ns = clock.monotonic_ns()
        self._forget(state)
        if now_ns - self._noted_ns >= LEVELS_EVERY_NS:
            self._noted_ns = now_ns
            self.history.add(self._level(state, now_ns, mean_plan_ms))

    def _forget(self, state: SchedulerState) -> None:
        """Forget what will not end any more, as its worker is gone or another scheduler has settled it."""
        known = {update for model in state.models.values() for update in (*model.pushes.planned, *model.pushes.waiting)}
        self._updates = {update: one for update, one in self._updates.items() if update in known}
        gets = {get for model in state.models.values() for get in model.gets.planned}
        self._gets = {get: one for get, one in self._gets.items() if get in gets}
        members = state.context.members
        self._states = {worker: one for worker, one in self._states.items() if worker in members}
        self._computed_from = {worker: one for worker, one in self._computed_from.items() if worker in members}

    def _level(self, state: SchedulerState, now_ns: int, mean_plan_ms: float) -> Entry:
        versions = {name: model.pushes.version.number for name, model in state.models.items()}
        versions |= {name: rounds.version for name, rounds in state.reductions.items()}
        models: dict[str, dict[str, Any]] = {
            name: {"version": version, "whole": name, "tau_max": 0} for name, version in versions.items()
        }
        for name, rounds in state.reductions.items():
            models[name]["tau_max"] = (rounds.delay_bound or 0) if isinstance(rounds, StepRounds) else 0
        for name, model in state.models.items():
            models[name] |= {"whole": name_of_whole(model.pushes.spec), "tau_max": model.pushes.tau_max}
            if (behind := model.replication.behind) is not None:
                models[name] |= behind._asdict()
        network = state.context.network
        ways = {host: (up_link(host), down_link(host)) for host in network.hosts}
        return {
            "kind": "level",
            "at": self.ms(now_ns),
            "plans": state.count.plans,
            "mean_plan_ms": round(mean_plan_ms, 3),
            "models": models,
            "links": {
                host: [network.rate_bps(way, now_ns) if network.is_known(way) else None for way in both]
                for host, both in ways.items()
            },
        }

    def _begin_anew(self, state: SchedulerState, now_ns: int) -> Iterator[Entry]:
        """Note of which models all that was noted before is of another one, which had the same name."""
        models: dict[str, set[str]] = {name: {name} for name in state.reductions}
        for name, model in state.models.items():
            models.setdefault(name_of_whole(model.pushes.spec), set()).add(name)
        self._ended |= {name: parts for name, parts in self._models.items() if name not in models}
        for name in sorted(self._ended.keys() & models):
            former = sorted({name, *self._ended.pop(name)})
            yield {**self._note(now_ns, name, "begins anew, in another job"), "begins": former}
        for name in [*self._ended][:-MOST_ENDED]:
            del self._ended[name]
        self._models, self._names = models, state.models.keys() | state.reductions.keys()

    def _told(self, event: MemberEvent, now_ns: int) -> Iterator[Entry]:
        match event:
            case PushRequested():
                self._updates.setdefault(event.update, _Update(model=event.model, asked_ns=now_ns))
            case ReduceRequested():
                self._computed_from[event.reduce.worker] = event.computed_from
            case RoundArrived(round=round_id, worker=worker) if round_id in self._rounds:
                self._rounds[round_id].arrived_ns.setdefault(worker, now_ns)
            case CommitsReported():
                for commit in event.commits:
                    if (one := self._updates.pop(commit.update, None)) is not None:
                        entry = self._update(commit.update, one, now_ns, "committed")
                        yield {**entry, "delay": commit.tau, "version": commit.version.number}
            case TransferEnded(transfer=GetId() as get) if get in self._gets:
                served = event.end is TransferEnd.SERVED
                yield self._get(get, self._gets.pop(get), now_ns, "served" if served else event.end.value)
            case TransferEnded():
                yield from self._transferred(event, now_ns)
            case StateArrived(worker=worker) if worker in self._states:
                peer, since_ns = self._states.pop(worker)
                took = f"{(now_ns - since_ns) / 1e9:.2f} s"
                yield self._note(now_ns, worker, f"has version {event.version} of {event.model} from {peer}, in {took}")
            case MemberLeft():
                left = self._note(now_ns, event.name, f"left: {event.detail}" if event.detail else "left")
                yield {**left, "here": False}
            case MemberSilent():
                yield self._note(now_ns, event.name, "is silent: its connection broke", is_warning=True)
            case MemberLost():
                yield {**self._note(now_ns, event.name, f"is lost: {event.detail}", is_warning=True), "here": False}

    def _transferred(self, event: TransferEnded, now_ns: int) -> Iterator[Entry]:
        """Note what has come of an update, or of the sum that it is in."""
        if isinstance(event.transfer, UpdateId):
            found = [event.transfer] if event.transfer in self._updates else []
        else:
            found = [update for update, one in self._updates.items() if one.sum == event.transfer]
        for update in found:
            if event.end is TransferEnd.RECEIVED:
                self._updates[update].received_ns = now_ns
            elif event.end is TransferEnd.DISCARDED and event.cause is not None:
                yield self._dropped(update, event.cause, event.cause.value, now_ns)

    def _decided(self, state: SchedulerState, instruction: Instruction, now_ns: int) -> Iterator[Entry]:
        match instruction:
            case Expect(model=model) if model in state.models:
                for member in instruction.members:
                    planned = state.models[model].pushes.planned.get(member.update)
                    if planned is not None and (one := self._updates.get(member.update)) is not None:
                        one.planned, one.sum, one.reason = planned.profile, planned.sum, instruction.reason
            case Serve(model=model, get=get) if model in state.models and get in state.models[model].gets.planned:
                planned_get = state.models[model].gets.planned[get]
                self._gets[get] = _Get(model=model, planned=planned_get.profile, reason=instruction.reason)
            case Drop(update=update) if instruction.to == update.worker and update in self._updates:
                yield self._dropped(update, instruction.cause, instruction.reason, now_ns)
            case Reduce():
                self._begun(state, instruction, now_ns)
            case ReduceSettled(round=round_id) if round_id in self._rounds:
                yield self._round(round_id, self._rounds.pop(round_id), now_ns, "settled", "")
            case CancelReduce(round=round_id) if round_id in self._rounds:
                yield self._round(round_id, self._rounds.pop(round_id), now_ns, "void", instruction.reason)
            case PassReduce(keep=False):
                yield self._note(now_ns, instruction.to, f"its gradient is dropped: {instruction.reason}")
            case ReduceFailed():
                refused = f"its tensor is refused: {instruction.reason}"
                yield self._note(now_ns, instruction.to, refused, is_warning=True)
            case FetchState():
                self._states[instruction.to] = instruction.peer.worker, now_ns
            case Welcome(to=name):
                joined = self._note(now_ns, name, f"joined as {state.context.members[name].member.role.value}")
                yield {**joined, "here": True}
            case SetThreshold():
                yield self._note(now_ns, instruction.to, f"stops its steps early: {instruction.reason}")

    def _begun(self, state: SchedulerState, told: Reduce, now_ns: int) -> None:
        """Note what one worker is told of a round."""
        if (one := self._rounds.get(told.round)) is None:
            model = state.context.members[told.to].model
            self._rounds = {round_id: other for round_id, other in self._rounds.items() if other.model != model}
            one = self._rounds[told.round] = _Round(
                model=model,
                version=told.version,
                began_ns=now_ns,
                planned_ns=told.planned_ns,
                reason=told.reason,
                size_bytes=told.size_bytes,
            )
        side = one.receivers if told.reduce is None else one.members
        if told.to not in side:
            side.append(told.to)
        if told.reduce is not None and told.version:
            one.delays[told.to] = max(0, told.version - 1 - self._computed_from.get(told.to, told.version - 1))

    def _dropped(self, update: UpdateId, cause: DropReason, reason: str, now_ns: int) -> Entry:
        dropped = self._update(update, self._updates.pop(update), now_ns, "dropped")
        return {**dropped, "cause": cause.value, "reason": reason}

    def _update(self, update: UpdateId, one: _Update, ended_ns: int, outcome: str) -> dict[str, Any]:
        return {
            "kind": "update",
            "id": str(update),
            "worker": update.worker,
            "model": one.model,
            "asked": self.ms(one.asked_ns),
            "planned": self._window(one.planned),
            "received": self.ms(one.received_ns),
            "ended": self.ms(ended_ns),
            "outcome": outcome,
            "sum": "" if one.sum is None else str(one.sum),
            "reason": one.reason,
        }

    def _get(self, get: GetId, one: _Get, ended_ns: int, outcome: str) -> Entry:
        return {
            "kind": "get",
            "id": str(get),
            "worker": get.worker,
            "model": one.model,
            "planned": self._window(one.planned),
            "ended": self.ms(ended_ns),
            "outcome": outcome,
            "reason": one.reason,
        }

    def _round(self, round_id: RoundId, one: _Round, ended_ns: int, outcome: str, cause: str) -> Entry:
        return {
            "kind": "round",
            "id": str(round_id),
            "model": one.model,
            "version": one.version,
            "began": self.ms(one.began_ns),
            "planned": [self.ms(one.began_ns), self.ms(one.began_ns + one.planned_ns)] if one.planned_ns else None,
            "ended": self.ms(ended_ns),
            "outcome": outcome,
            "cause": cause,
            "members": sorted(one.members),
            "receivers": sorted(one.receivers),
            "arrived": {worker: self.ms(at_ns) for worker, at_ns in one.arrived_ns.items()},
            "delays": dict(one.delays),
            "bytes": one.size_bytes,
            "reason": one.reason,
        }

    def _note(self, now_ns: int, about: str, text: str, *, is_warning: bool = False) -> Entry:
        return {"kind": "note", "at": self.ms(now_ns), "about": about, "text": text, "warning": is_warning}

    def _window(self, profile: Profile | None) -> list[float] | None:
        return None if profile is None else [self.ms(profile.start_ns), self.ms(profile.end_ns)]
