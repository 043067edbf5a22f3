"""A scheduler and workers that apply rounds by themselves in a storm: streams break, workers hang or die, schedulers
restart.

Messages of a stream arrive in order, or are lost with it. Data moves as it must: once all workers of a round carry it
out, each of them may get the result at any moment, and breaks if another one has stopped before. What the result is
follows from what each worker was told: every edge must have two ends that agree, every gradient must be in it once.

A worker's model is what it was made of: where it began, and which rounds were applied to it. A gradient is a number
that only it has, so a sum tells what is in it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlfabric.model.round_options import MOST_KEPT
from mlfabric.model.specs import Layout, Member, Method, ModelSpec, Role, RoundOptions, TensorSpec, Term
from mlfabric.protocol import (
    BeginState,
    CancelReduce,
    FetchState,
    GiveState,
    Instruction,
    MemberEvent,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberSilent,
    PassReduce,
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
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.actions import DaemonEvent, Request
from mlfabric.worker_daemon.state import DaemonState

__all__ = ["StepStorm"]

LAYOUT = Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),))
MS = 1_000_000
WEIGHT = 3
"""Of each gradient."""
LONGEST_HANG = 60

Gradient = tuple[str, int, int]
Applied = tuple[int, RoundId, frozenset[Gradient]]
"""A version, the round that made it, and the gradients in it."""


@dataclass(eq=False)
class Player:
    """A worker: its state machine, its stream, the attempt that it carries out, and its model."""

    name: str
    incarnation: int
    state: DaemonState
    wants: int
    up: deque[MemberEvent] | None = None
    down: deque[Instruction] = field(default_factory=deque)
    attempt: Reduce | None = None
    result: frozenset[Gradient] | None = None
    asked: int = 0
    hangs: int = 0
    version: int = 0
    history: tuple[Any, ...] = ()
    waiting: list[Applied] = field(default_factory=list)
    fetching: FetchState | None = None
    fetched: tuple[int, tuple[Any, ...]] | None = None
    gives: set[bytes] = field(default_factory=set)
    has_model: bool = False
    kept: frozenset[Gradient] = frozenset()
    gradients: dict[ReduceId, frozenset[Gradient]] = field(default_factory=dict)
    computed_from: dict[ReduceId, int] = field(default_factory=dict)
    included: set[Gradient] = field(default_factory=set)
    dropped: set[Gradient] = field(default_factory=set)

    @property
    def is_done(self) -> bool:
        return self.asked >= self.wants and not self.state.reducing.open and self.fetching is None


class StepStorm:
    """One storm, from a seed, with one of the methods."""

    def __init__(self, seed: int, workers: int, rounds: int, method: Method, **options: Any) -> None:
        self.options = RoundOptions(**options)
        self.spec = ModelSpec(name="net", layout=LAYOUT, method=method, rounds=self.options)
        self.histories: dict[RoundId, tuple[Any, ...]] = {}
        self.delays: Counter[int] = Counter()
        self.told: defaultdict[RoundId, set[str]] = defaultdict(set)
        self.draw = random.Random(seed)
        self.now_ns = 0
        self.epoch = 0
        self.rounds = rounds
        self.incarnations = 0
        self.size_bytes = 16
        self.results: dict[RoundId, frozenset[Gradient]] = {}
        self.lives: list[Player] = []
        self.workers = workers
        self.players: list[Player] = []
        self.start_scheduler()
        self.players = [self.born(f"w{i}") for i in range(workers)]

    def born(self, name: str) -> Player:
        self.incarnations += 1
        state = DaemonState(name, 1, "net", self.workers)
        player = Player(name, self.incarnations, state, self.rounds)
        player.history = (("begin", name, self.incarnations),)
        self.lives.append(player)
        return player

    def start_scheduler(self) -> None:
        self.epoch += 1
        self.state = SchedulerState(SchedulerConfig(term=Term(self.epoch, 0), ticket_secret=b"sixteen bytes or"))
        for player in self.players:
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

    def say(self, player: Player) -> None:
        if player.up:
            self.tell(player.up.popleft())

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
            if isinstance(instruction, Reduce):
                self.told[instruction.round].add(instruction.to)
            for player in self.players:
                if player.name == instruction.to and player.up is not None:
                    player.down.append(instruction)

    def ask(self, player: Player) -> None:
        """Offer the next gradient, computed from the model as it is."""
        if player.asked >= self.rounds or player.state.reducing.open or not player.has_model or player.fetching:
            return
        if player.fetched is not None:  # the model was fetched while this one was computed
            self.install(player)
            return
        reduce = ReduceId(player.name, player.incarnation, player.asked)
        player.asked += 1
        gradients = player.kept | {(reduce.worker, reduce.incarnation, reduce.counter)}
        player.gradients[reduce], player.computed_from[reduce] = gradients, player.version
        request = ReduceRequested(
            reduce=reduce,
            model="net",
            size_bytes=self.size_bytes,
            dtype="float32",
            op=ReduceOp.SUM,
            together=self.workers,
            computed_from=player.version,
            updates=len(gradients),
            weight=WEIGHT * len(gradients),
        )
        self.feed(player, act.ReduceCalled(request=request))

    def hear(self, player: Player) -> None:
        known = Reduce | CancelReduce | ReduceSettled | ReduceFailed | PassReduce | BeginState | FetchState | GiveState
        if player.down and isinstance(told := player.down.popleft(), known):
            self.feed(player, told)

    def move(self, player: Player) -> None:
        """Let a worker's attempt end, or the state come that it fetches."""
        plan = player.attempt
        if player.fetching is not None and (plan is None or self.draw.random() < 0.5):
            self.fetch(player, player.fetching)
            return
        if plan is None or player.result is not None:
            return
        takes_part = self.told[plan.round]
        others = {other.name: self.part_of(other, plan.round) for other in self.players}
        if all(others.get(name) == "takes part" for name in takes_part):
            player.result = self.result_of(plan)
            self.feed(player, act.AttemptEnded(round=plan.round))
        elif any(others.get(name, "is out") == "is out" for name in takes_part):
            player.attempt = None
            self.feed(player, act.AttemptEnded(round=plan.round, detail="a connection broke"))

    def result_of(self, plan: Reduce) -> Any:
        """Return which gradients a round sums; its trees must reach all who contribute, and all who receive."""
        plans = {p.name: p.attempt for p in self.players if p.attempt is not None and p.attempt.round == plan.round}
        members = {name for name, told in plans.items() if told.reduce is not None}
        assert len(members) == plan.workers, f"{plan.round}: {sorted(members)} of {plan.workers}"
        at = 0
        for index, own in enumerate(plan.parts):
            parts = {worker: told.parts[index] for worker, told in plans.items()}
            assert own.start == at, f"{plan.round}: bytes from {at} on are in no part"
            at = own.end
            (root,) = (worker for worker, part in parts.items() if part.source is None)
            added = tree(parts, root, lambda part: part.inputs, lambda part: part.parent)
            handed = tree(parts, root, lambda part: part.takers, lambda part: part.source)
            assert members <= set(added), f"{plan.round}: {sorted(members - set(added))} are in no sum"
            assert len(set(added)) == len(added), f"{plan.round}: {added}"
            assert sorted(handed) == sorted(parts), f"{plan.round}: {parts}"
        assert at == self.size_bytes, f"{plan.round}: {at} of {self.size_bytes} bytes are reduced"
        contributed = {p.name: plans[p.name].reduce for p in self.players if p.name in members}
        lists = [p.gradients[reduce] for p in self.players if (reduce := contributed.get(p.name)) is not None]
        total = frozenset().union(*lists)
        assert len(total) == sum(map(len, lists)) == plan.weight / WEIGHT, f"{plan.round}: {lists}, told {plan.weight}"
        return total

    def feed(self, player: Player, event: DaemonEvent) -> None:
        for action in player.state.handle(event, self.now_ns):
            match action:
                case Request():
                    if player.up is not None:
                        player.up.append(action.event)
                case act.StartAttempt():
                    player.attempt, player.result = action.plan, None
                case act.StopAttempt():
                    player.attempt = None
                case act.FinishReduce():
                    self.settled(player, action.plan)
                case act.PassOver():
                    self.passed(player, action)
                case act.KeepState():
                    player.has_model, player.version = True, action.version
                    player.fetching = player.fetched = None
                    player.waiting.clear()
                    player.history = (*player.history, ("goes on at", action.version))
                case act.StartFetchState():
                    player.fetching, player.fetched = action.plan, None
                    player.waiting.clear()
                case act.StartGiveState():
                    player.gives.add(action.plan.peer.ticket)
                case _:
                    raise AssertionError(action)

    # Laws

    def settled(self, player: Player, plan: Reduce) -> None:
        """Every worker gets the same sum of a round; a worker's own gradient is in it once, within the delay bound."""
        assert player.attempt == plan, f"{player.name} finished what it did not begin"
        assert player.result is not None, f"{player.name} finished without a result"
        agreed = self.results.setdefault(plan.round, player.result)
        assert player.result == agreed, f"{player.name} has another result of {plan.round} than others have"
        player.waiting.append((plan.version, plan.round, player.result))
        player.attempt = None
        if plan.reduce is not None:
            delay = plan.version - 1 - player.computed_from[plan.reduce]
            self.delays[delay] += 1
            bounds = {Method.ELASTIC: self.options.tau_max, Method.PARTIAL: self.options.full_every}
            bound = bounds.get(self.spec.method, 0)
            assert 0 <= delay <= bound, f"{player.name}: {plan.reduce} has delay {delay}"
            gradients = player.gradients[plan.reduce]
            assert gradients <= player.result, f"{player.name}: {gradients} are not in {plan.round}"
            assert not gradients & (player.included | player.dropped), f"{gradients} had an outcome before"
            player.included |= gradients
            player.kept = frozenset()
            if player.fetching is None:
                self.install(player)
                self.apply(player)

    def passed(self, player: Player, action: act.PassOver) -> None:
        gradients = player.gradients[action.reduce]
        assert not gradients & (player.included | player.dropped), f"{gradients} had an outcome before"
        assert action.keep == (self.spec.method is Method.PARTIAL) or not action.keep, (
            "only partial rounds keep gradients"
        )
        player.kept = gradients if action.keep else frozenset()
        assert len(player.kept) < MOST_KEPT, f"{player.name} keeps {player.kept}"
        player.dropped |= frozenset() if action.keep else gradients
        if player.fetching is None:
            self.install(player)
            self.apply(player)

    def install(self, player: Player) -> None:
        if player.fetched is not None:
            player.version, player.history = player.fetched
            player.fetched = None

    def apply(self, player: Player) -> None:
        """Apply what waits, in order; all who have applied a round have the same model."""
        for version, round_id, gradients in player.waiting:
            if version <= player.version:
                continue
            assert version == player.version + 1, f"{player.name}: version {version} after {player.version}"
            seen = {each for entry in player.history if len(entry) == 3 and entry[0] != "begin" for each in entry[2]}
            assert not seen & gradients, f"{seen & gradients} are applied twice"
            player.version = version
            player.history = (*player.history, (version, round_id, gradients))
            agreed = self.histories.setdefault(round_id, player.history)
            assert player.history == agreed, f"{player.name} has another model after {round_id} than others have"
        player.waiting.clear()

    def fetch(self, player: Player, plan: FetchState) -> None:
        """Let the state come, once the peer's training thread has applied what is wanted."""
        peer = next((p for p in self.players if p.name == plan.peer.worker), None)
        if peer is None or (plan.peer.ticket not in peer.gives and not self.is_to_give(peer, plan)):
            player.fetching = None
            self.feed(player, act.StateEnded(round=plan.round, detail="nobody there"))
        elif plan.peer.ticket in peer.gives and peer.has_model and peer.version >= plan.version:
            player.fetching, player.has_model = None, True
            player.fetched = peer.version, peer.history
            self.feed(player, act.StateEnded(round=plan.round, version=peer.version))
            if not player.state.reducing.open:
                self.install(player)

    @staticmethod
    def is_to_give(peer: Player, plan: FetchState) -> bool:
        return any(isinstance(told, GiveState) and told.peer.ticket == plan.peer.ticket for told in peer.down)

    def check(self) -> None:
        """Every gradient has its outcome, or is kept for a step that was not made."""
        for player in self.lives:
            if not player.state.reducing.open and player.is_done:
                known = player.included | player.dropped | player.kept
                made = frozenset().union(*player.gradients.values()) if player.gradients else frozenset()
                assert known == made, f"{player.name}: {made - known} have no outcome"

    def run(self, steps: int) -> None:
        """Let it storm, then let it calm down until everybody has done everything and has left."""
        for _ in range(steps):
            self.step(calm=False)
        left = 20_000
        while left and self.players:
            self.step(calm=True)
            left -= 1
        self.check()
        assert left, f"all wait: { {p.name: (p.asked, p.version, p.attempt) for p in self.players} }"
        assert self.histories, "no round was made"


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
