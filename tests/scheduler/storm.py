"""A scheduler among members that do only what the rules ask of them, in virtual time, and a storm over all of them.

Transfers take any time up to ``slowest_ms``, whatever was planned, and a share ``broken`` of those of workers breaks.

Servers, aggregators and workers here are as plain as can be: nothing is budgeted, data connections are calls with a
delay. What is tried is the scheduler: that whatever breaks, nothing is planned twice at a time and all of it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from random import Random

from mlfabric.protocol import (
    DropReason,
    Instruction,
    MemberEvent,
    MemberJoined,
    MemberLost,
    MemberSilent,
    Outcome,
    Refuse,
    Tick,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
)
from mlfabric.scheduler.context import SchedulerConfig
from mlfabric.scheduler.state import SchedulerState
from mlfabric.specs import Member, ModelSpec, Role
from tests.scheduler.stage import GIGABIT, MS, SECRET


class Storm:
    """The world, its clock, and the scheduler."""

    def __init__(self, seed: int, spec: ModelSpec, calm: bool) -> None:
        self.random = Random(seed)
        self.slowest_ms = 7 if calm else 90
        self.broken = 0.0 if calm else 0.05
        self.spec = spec
        self.now_ns = 1000 * MS
        self.epoch = 0
        self.version = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._tick_ns: int | None = None
        self.members: dict[str, Party] = {}

    def begin(self, members: Iterable[Party]) -> None:
        """Start the first scheduler, and let everybody join."""
        self.members = {party.name: party for party in members}
        self.restart()

    def later(self, least_ms: float, most_ms: float, what: Callable[[], None]) -> None:
        self._count += 1
        at_ns = self.now_ns + round(self.random.uniform(least_ms, most_ms) * MS)
        heapq.heappush(self._queue, (at_ns, self._count, what))

    def at(self, at_ns: int, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(at_ns, self.now_ns), self._count, what))

    def run(self, steps: int) -> None:
        """Play until every worker is done."""
        for _ in range(steps):
            if all(party.is_done for party in self.members.values()) and not self.is_busy:
                return
            self.now_ns, _, what = heapq.heappop(self._queue)
            what()
        raise AssertionError(f"after {steps} steps: {self.told()}")

    @property
    def is_busy(self) -> bool:
        """Whether the scheduler waits for the end of anything."""
        model = self.state.models.get("net")
        return model is None or bool(model.pushes.planned)

    def told(self) -> str:
        pushes = self.state.models["net"].pushes
        return f"waiting {pushes.waiting}, planned {pushes.planned}"

    # The scheduler

    def restart(self) -> None:
        self.epoch += 1
        config = SchedulerConfig(epoch=self.epoch, ticket_secret=SECRET + str(self.epoch).encode())
        self.state = SchedulerState(config)
        for party in self.members.values():
            party.cut_off()

    def hear(self, event: MemberEvent) -> list[Instruction]:
        instructions = self.state.handle(event, self.now_ns)
        self.state.validate()
        for instruction in instructions:
            party = self.members[instruction.to]
            if party.session is not None:
                party.session.down(instruction)
        due_ns = self.state.next_wakeup_ns(self.now_ns)
        if due_ns is not None and (self._tick_ns is None or due_ns < self._tick_ns):
            self._tick_ns = max(due_ns, self.now_ns)
            self.at(self._tick_ns, self._tick)
        return instructions

    def _tick(self) -> None:
        if self._tick_ns is not None and self.now_ns >= self._tick_ns:
            self._tick_ns = None
            self.hear(Tick())

    def strike(self, faults: int) -> None:
        """Let something break, and more of it later."""
        if not faults:
            return
        blows = [blow for party in self.members.values() for blow in party.blows()]
        if self.random.random() < 0.05:
            blows = [self.restart]
        self.random.choice(blows)()
        self.later(5, 120, lambda: self.strike(faults - 1))


class Session:
    """One stream between a member and one scheduler: what is said arrives later, in order, unless the stream ends."""

    def __init__(self, world: Storm, party: Party) -> None:
        self._world, self._party, self._epoch = world, party, world.epoch
        self._last_ns = [0, 0]

    @property
    def is_open(self) -> bool:
        return self._party.session is self and self._epoch == self._world.epoch

    def _in_order(self, way: int, what: Callable[[], None]) -> None:
        at_ns = self._world.now_ns + round(self._world.random.uniform(0.1, 3) * MS)
        self._last_ns[way] = max(self._last_ns[way], at_ns)
        self._world.at(self._last_ns[way], lambda: what() if self.is_open else None)

    def up(self, event: MemberEvent) -> None:
        self._in_order(0, lambda: self._heard(event))

    def _heard(self, event: MemberEvent) -> None:
        self._world.hear(event)

    def down(self, instruction: Instruction) -> None:
        self._in_order(1, lambda: self._party.told(instruction))


class Party:
    """A member: its session, and how it comes back."""

    role: Role

    def __init__(self, world: Storm, name: str) -> None:
        self.world, self.name, self.incarnation = world, name, 1
        self.session: Session | None = None

    def cut_off(self) -> None:
        self.session = None
        self.world.later(1, 60, self.join)

    def fall_silent(self) -> None:
        if self.session is not None:
            self.session = None
            if self.world.random.random() < 0.3:
                self.world.hear(MemberLost(name=self.name, incarnation=self.incarnation, detail="stopped"))
            else:
                self.world.hear(MemberSilent(name=self.name, incarnation=self.incarnation))
            self.world.later(1, 300, self.join)

    def join(self) -> None:
        if self.session is not None:
            return
        down = GIGABIT // 10 if self.role is Role.SERVER else GIGABIT
        member = Member(
            name=self.name,
            role=self.role,
            incarnation=self.incarnation,
            host=f"h-{self.name}",
            address=f"{self.name}:1",
            up_bps=GIGABIT,
            down_bps=down,
        )
        self.session = Session(self.world, self)
        answers = self.world.hear(self.joining(member))
        if any(isinstance(a, Refuse) for a in answers):
            self.cut_off()
            return
        self.joined()

    @property
    def is_done(self) -> bool:
        """Whether it wants nothing any more."""
        return True

    def blows(self) -> list[Callable[[], None]]:
        """Return what may happen to it."""
        return [self.fall_silent]

    def joining(self, member: Member) -> MemberJoined:
        return MemberJoined(member=member)

    def joined(self) -> None:
        """Say what is open."""

    def say(self, event: MemberEvent) -> None:
        if self.session is not None:
            self.session.up(event)

    def ended(self, transfer: TransferId, end: TransferEnd, cause: DropReason | None = None) -> None:
        self.say(TransferEnded(member=self.name, model="net", transfer=transfer, end=end, cause=cause, detail="storm"))

    def told(self, instruction: Instruction) -> None:
        raise NotImplementedError

    # As who has sent something

    def broke(self, transfer: TransferId) -> None:
        raise NotImplementedError

    def learnt(self, transfer: TransferId, outcomes: dict[UpdateId, Outcome]) -> None:
        raise NotImplementedError
