"""A scheduler and the workers of an AllReduce job in a storm: streams break, workers hang or die, schedulers restart.

Messages of a stream arrive in order, or are lost with it. Data moves as it must: once all workers of a round carry it
out, each of them may get the result at any moment, and breaks if another one has stopped before. What the result is
follows from what each worker was told: every edge must have two ends that agree, every tensor must be in the sum once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from mlfabric.model.specs import Layout, Member, Mode, ModelSpec, Role, TensorSpec, Term
from mlfabric.protocol import (
    CancelReduce,
    Instruction,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberSilent,
    Peer,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReducePart,
    ReduceRequested,
    ReduceSettled,
    RoundId,
    Tick,
    Welcome,
)
from mlfabric.scheduler.context import SchedulerConfig
from mlfabric.scheduler.state import SchedulerState
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import DaemonState

__all__ = ["Storm"]

SPEC = ModelSpec(name="net", layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)), mode=Mode.ALL_REDUCE)
MS = 1_000_000
FAILED = None
LONGEST_HANG = 60

Result = tuple[tuple[int, int, int], ...]
"""Of each range of bytes, its start, its end, and the sum of what was given."""


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
    result: Result | None = None
    asked: int = 0
    hangs: int = 0
    given: dict[ReduceId, int] = field(default_factory=dict)
    over: set[ReduceId] = field(default_factory=set)
    ends: list[RoundId | None] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """It has asked for nothing that has no outcome, and will not ask any more."""
        return self.asked == self.wants and not self.state.reducing.open


class Storm:
    """One storm, from a seed."""

    spec = SPEC

    def __init__(self, seed: int, workers: int, rounds: int, size_bytes: int = 16) -> None:
        self.draw = random.Random(seed)
        self.now_ns = 0
        self.epoch = 0
        self.rounds = rounds
        self.incarnations = 0
        self.size_bytes = size_bytes
        self.finished: list[RoundId] = []
        self.results: dict[RoundId, Result] = {}
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
        self.state = SchedulerState(SchedulerConfig(term=Term(self.epoch, 0), ticket_secret=b"sixteen bytes or"))
        for player in getattr(self, "players", []):
            player.up = None

    # What may happen

    def step(self, calm: bool) -> None:
        """Let something happen."""
        self.now_ns += self.draw.choice((0, 1, 30, 400)) * MS
        player = self.draw.choice(self.players)
        if player.hangs:
            player.hangs -= 1
        elif not calm and self.draw.random() < 0.03:
            self.strike(player)
        elif calm and player.is_done and player.up is not None:
            self.leave(player)
        elif player.up is None:
            self.join(player)
        else:
            self.draw.choice((self.ask, self.hear, self.say, self.say, self.hear, self.move))(player)
        self.tick()
        self.state.validate()
        for each in self.players:
            each.state.validate()

    def strike(self, player: Player) -> None:
        """Break a stream (noticed or not), find a worker stopped, let one hang, kill it, or start another scheduler."""
        kind = self.draw.choice(("stream", "stream", "lost", "again", "death", "hang", "scheduler"))
        if kind == "scheduler":
            self.start_scheduler()
        elif kind == "hang":
            player.hangs = self.draw.randrange(LONGEST_HANG)
        elif kind == "again":
            player.up = None  # its next registration is the first that the scheduler hears of it
        elif kind == "lost":
            self.tell(MemberLost(name=player.name, incarnation=player.incarnation, detail="its process is stopped"))
            player.up = None
        elif player.up is not None or kind == "death":
            self.tell(MemberSilent(name=player.name, incarnation=player.incarnation))
            player.up = None
        if kind == "death":
            self.players[self.players.index(player)] = self.born(player.name)

    def join(self, player: Player) -> None:
        member = Member(name=player.name, role=Role.WORKER, incarnation=player.incarnation, host=f"h-{player.name}")
        answers = self.state.handle(MemberJoined(member=member, spec=self.spec), self.now_ns)
        player.down.clear()
        if any(isinstance(answer, Welcome) for answer in answers):
            player.up = deque([player.state.holds()])
        self.post([answer for answer in answers if not isinstance(answer, Welcome)])

    def leave(self, player: Player) -> None:
        """Say good-bye, so that others do not wait for who has no more to do."""
        self.tell(MemberLeft(name=player.name, incarnation=player.incarnation))
        self.players.remove(player)

    def ask(self, player: Player) -> None:
        """Ask for the next AllReduce, up to two ahead."""
        if player.asked < self.rounds and len(player.state.reducing.open) < 2:
            reduce = ReduceId(player.name, player.incarnation, player.asked)
            player.asked += 1
            player.given[reduce] = self.draw.getrandbits(64)
            request = ReduceRequested(
                reduce=reduce,
                model="net",
                size_bytes=self.size_bytes,
                dtype="float32",
                op=ReduceOp.SUM,
                together=self.workers,
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
        if plan is None or player.result is not None:
            return
        others = [self.part_of(other, plan.round) for other in self.players]
        if others.count("takes part") == plan.workers:
            player.result = self.result_of(plan)
            self.feed(player, act.AttemptEnded(round=plan.round))
        elif len(others) - others.count("is out") < plan.workers:
            player.attempt = None
            self.feed(player, act.AttemptEnded(round=plan.round, detail="a connection broke"))

    def result_of(self, plan: Reduce) -> Result:
        """Return what a round comes to; its workers' trees must be trees, and have all of them in them."""
        plans = {p.name: p.attempt for p in self.players if p.attempt is not None and p.attempt.round == plan.round}
        given = {p.name: p.given[plans[p.name].reduce] for p in self.players if p.name in plans}
        result, at = [], 0
        for index, own in enumerate(plan.parts):
            parts = {worker: told.parts[index] for worker, told in plans.items()}
            assert {(part.start, part.end) for part in parts.values()} == {(own.start, own.end)}, (
                f"{plan.round}: {parts}"
            )
            assert own.start == at, f"{plan.round}: bytes from {at} on are in no part"
            at = own.end
            (root,) = (worker for worker, part in parts.items() if part.parent is None)
            added = tree(parts, root, lambda part: part.inputs, lambda part: part.parent)
            handed = tree(parts, root, lambda part: part.takers, lambda part: part.source)
            assert sorted(added) == sorted(handed) == sorted(parts), f"{plan.round}: {parts}"
            result.append((own.start, own.end, sum(given[worker] for worker in added)))
        assert at == self.size_bytes, f"{plan.round}: {at} of {self.size_bytes} bytes are reduced"
        return tuple(result)

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
                    player.attempt, player.result = action.plan, None
                case act.StopAttempt():
                    player.attempt = None
                case act.FinishReduce():
                    assert action.plan.reduce is not None, "everybody contributes"
                    self.end(player, action.plan.reduce)
                    self.finish(player, action)
                case act.FailReduce():
                    self.end(player, action.reduce)
                    player.ends.append(FAILED)

    @staticmethod
    def end(player: Player, reduce: ReduceId) -> None:
        assert reduce not in player.over, f"{player.name}: {reduce} ended twice"
        assert all(other < reduce for other in player.over), f"{player.name}: {reduce} ended after {max(player.over)}"
        player.over.add(reduce)

    def finish(self, player: Player, action: act.FinishReduce) -> None:
        assert player.result is not None, f"{player.name} finished without a result"
        assert player.attempt is not None, f"{player.name} finished what it did not begin"
        assert player.attempt == action.plan, f"{player.name}: {action} is not of {player.attempt.reduce}"
        settled = player.attempt.round
        assert settled not in player.ends, f"{player.name} finished {settled} twice"
        agreed = self.results.setdefault(settled, player.result)
        assert player.result == agreed, f"{player.name} has another result of {settled} than others have"
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
        """Let it storm, then let it calm down until everybody has done everything and has left."""
        for _ in range(steps):
            self.step(calm=False)
        left = 20_000
        while left and self.players:
            self.step(calm=True)
            left -= 1
        self.check()
        assert left, f"all wait: { {player.name: player.ends for player in self.players} }"
        assert any(isinstance(end, RoundId) for player in self.lives for end in player.ends)


def tree(
    parts: Mapping[str, ReducePart],
    root: str,
    below: Callable[[ReducePart], Iterable[Peer]],
    above: Callable[[ReducePart], Peer | None],
) -> list[str]:
    """Return who is in a tree, from its root on; both ends of each edge must know its ticket."""
    found, open_ends = [], [root]
    while open_ends:
        worker = open_ends.pop()
        found.append(worker)
        for peer in below(parts[worker]):
            other = above(parts[peer.worker])
            assert other is not None, f"{peer.worker} does not know of {worker}"
            assert (other.worker, other.ticket) == (worker, peer.ticket), f"{worker} and {peer.worker}: {peer}, {other}"
            open_ends.append(peer.worker)
    return found
