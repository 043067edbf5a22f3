"""A scheduler and the workers of an AllReduce job in a storm: streams break, workers die, the scheduler starts anew.

Messages of a stream arrive in order, or are lost with it. Data moves as it must: once all workers of a round carry it
out, each of them may get the result at any moment, and breaks if another one has stopped before.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from mlfabric.protocol import (
    CancelReduce,
    Instruction,
    MemberEvent,
    MemberJoined,
    MemberSilent,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    ReduceSettled,
    RoundId,
    Tick,
    Welcome,
)
from mlfabric.scheduler.context import SchedulerConfig
from mlfabric.scheduler.state import SchedulerState
from mlfabric.specs import Layout, Member, Mode, ModelSpec, Role, TensorSpec
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import DaemonState

__all__ = ["Storm"]

SPEC = ModelSpec(name="net", layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)), mode=Mode.ALL_REDUCE)
MS = 1_000_000
FAILED = None


@dataclass
class Player:
    """A worker: its state machine, its stream, the attempt it carries out, and how its AllReduces ended."""

    name: str
    incarnation: int
    state: DaemonState
    wants: int
    up: deque[MemberEvent] | None = None
    down: deque[Instruction] = field(default_factory=deque)
    attempt: Reduce | None = None
    has_result: bool = False
    asked: int = 0
    ends: list[RoundId | None] = field(default_factory=list)


class Storm:
    """One storm, from a seed."""

    def __init__(self, seed: int, workers: int, rounds: int) -> None:
        self.draw = random.Random(seed)
        self.now_ns = 0
        self.epoch = 0
        self.rounds = rounds
        self.incarnations = 0
        self.finished: list[RoundId] = []
        self.lives: list[Player] = []
        self.workers = workers
        self.start_scheduler()
        self.players = [self.born(f"w{i}") for i in range(workers)]

    def born(self, name: str) -> Player:
        self.incarnations += 1
        player = Player(name, self.incarnations, DaemonState(name), self.rounds)
        self.lives.append(player)
        return player

    def start_scheduler(self) -> None:
        self.epoch += 1
        self.state = SchedulerState(SchedulerConfig(epoch=self.epoch, ticket_secret=b"sixteen bytes or"))
        for player in getattr(self, "players", []):
            player.up = None

    # What may happen

    def step(self, calm: bool) -> None:
        """Let something happen."""
        self.now_ns += self.draw.choice((0, 1, 30, 400)) * MS
        player = self.draw.choice(self.players)
        if not calm and self.draw.random() < 0.03:
            self.strike(player)
        elif player.up is None:
            self.join(player)
        else:
            self.draw.choice((self.ask, self.hear, self.say, self.say, self.hear, self.move))(player)
        self.tick()
        self.state.validate()
        for each in self.players:
            each.state.validate()

    def strike(self, player: Player) -> None:
        """Break a stream (noticed or not), kill a worker, or start another scheduler."""
        kind = self.draw.choice(("stream", "stream", "again", "death", "scheduler"))
        if kind == "scheduler":
            self.start_scheduler()
        elif kind == "again":
            player.up = None  # its next registration is the first that the scheduler hears of it
        elif player.up is not None or kind == "death":
            self.tell(MemberSilent(name=player.name, incarnation=player.incarnation))
            player.up = None
        if kind == "death":
            self.players[self.players.index(player)] = self.born(player.name)

    def join(self, player: Player) -> None:
        member = Member(name=player.name, role=Role.WORKER, incarnation=player.incarnation, host=f"h-{player.name}")
        answers = self.state.handle(MemberJoined(member=member, spec=SPEC), self.now_ns)
        player.down.clear()
        if any(isinstance(answer, Welcome) for answer in answers):
            player.up = deque([player.state.holds()])
        self.post([answer for answer in answers if not isinstance(answer, Welcome)])

    def ask(self, player: Player) -> None:
        """Ask for the next AllReduce, up to two ahead."""
        if player.asked < self.rounds and len(player.state.reducing.open) < 2:
            reduce = ReduceId(player.name, player.incarnation, player.asked)
            player.asked += 1
            request = ReduceRequested(
                reduce=reduce, model="net", size_bytes=16, dtype="float32", op=ReduceOp.SUM, together=self.workers
            )
            self.feed(player, act.ReduceCalled(request=request))

    def hear(self, player: Player) -> None:
        if player.down:
            told = player.down.popleft()
            if isinstance(told, Reduce | CancelReduce | ReduceSettled | ReduceFailed):
                self.feed(player, told)

    def say(self, player: Player) -> None:
        if player.up:
            self.tell(player.up.popleft())

    def move(self, player: Player) -> None:
        """Let a worker's attempt end: well, if all others carry it out or have its result."""
        plan = player.attempt
        if plan is None or player.has_result:
            return
        others = [self.part_of(other, plan.round) for other in self.players]
        if others.count("takes part") == plan.workers:
            player.has_result = True
            self.feed(player, act.AttemptEnded(round=plan.round))
        elif len(others) - others.count("is out") < plan.workers:
            player.attempt = None
            self.feed(player, act.AttemptEnded(round=plan.round, detail="a connection broke"))

    @staticmethod
    def part_of(player: Player, round_id: RoundId) -> str:
        if player.attempt is not None and player.attempt.round == round_id:
            return "takes part"
        coming = any(isinstance(told, Reduce) and told.round == round_id for told in player.down)
        return "is to hear of it" if coming else "is out"

    # Who hears what

    def tick(self) -> None:
        due_ns = self.state.next_wakeup_ns(self.now_ns)
        if due_ns is not None and due_ns <= self.now_ns:
            self.tell(Tick())

    def tell(self, event: MemberEvent) -> None:
        self.post(self.state.handle(event, self.now_ns))

    def post(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            for player in self.players:
                if player.name == instruction.to and player.up is not None:
                    player.down.append(instruction)

    def feed(self, player: Player, event: act.DaemonEvent) -> None:
        for action in player.state.handle(event, self.now_ns):
            match action:
                case act.Request():
                    if player.up is not None:
                        player.up.append(action.event)
                case act.StartAttempt():
                    player.attempt, player.has_result = action.plan, False
                case act.StopAttempt():
                    player.attempt = None
                case act.FinishReduce():
                    self.finish(player)
                case act.FailReduce():
                    player.ends.append(FAILED)

    def finish(self, player: Player) -> None:
        assert player.has_result, f"{player.name} finished without a result"
        assert player.attempt is not None, f"{player.name} finished what it did not begin"
        settled = player.attempt.round
        player.ends.append(settled)
        if settled not in self.finished:
            assert not self.finished or self.finished[-1] < settled, f"{settled} after {self.finished[-1]}"
            self.finished.append(settled)

    # What must hold

    def check(self) -> None:
        """Nobody goes on past a round that others have and it has not, unless it was told."""
        for player in self.lives:
            for first, second in pairwise(player.ends):
                if first is not None and second is not None:
                    between = [r for r in self.finished if first < r < second and not self.is_given_up(r, second)]
                    assert not between, f"{player.name}: {first}, then {second}; others did {between}"

    def is_given_up(self, round_id: RoundId, later: RoundId) -> bool:
        """Whether all who did a round among themselves were told to load others' weights before this later one."""
        for player in self.lives:
            if round_id in player.ends:
                rest = player.ends[player.ends.index(round_id) + 1 :]
                after = next((i for i, end in enumerate(rest) if end is not None and end >= later), len(rest))
                if after < len(rest) and FAILED not in rest[:after]:
                    return False
        return True

    def run(self, steps: int) -> None:
        """Let it storm, then let it calm down until somebody has done everything."""
        for _ in range(steps):
            self.step(calm=False)
        left = 8_000
        while left and not any(p.asked == self.rounds and not p.state.reducing.open for p in self.players):
            self.step(calm=True)
            left -= 1
        self.check()
        assert left, f"all wait: { {player.name: player.ends for player in self.players} }"
        assert any(isinstance(end, RoundId) for player in self.lives for end in player.ends)
