"""A storm over workers that apply rounds by themselves: what ``round_storm`` plays, with models, states and delays.

A worker's model is what it was made of: where it began, and which rounds were applied to it. A gradient is a number
that only it has, so a sum tells what is in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from mlfabric.model.specs import Mode, RoundOptions
from mlfabric.protocol import (
    BeginState,
    CancelReduce,
    FetchState,
    GiveState,
    Instruction,
    PassReduce,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    ReduceSettled,
    RoundId,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import DaemonState
from tests.scheduler.round_storm import SPEC, Player, Storm, tree

__all__ = ["StepStorm"]

Gradient = tuple[str, int, int]
Applied = tuple[int, RoundId, frozenset[Gradient]]
"""A version, the round that made it, and the gradients in it."""


@dataclass
class Learner(Player):
    """A worker with a model."""

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


class StepStorm(Storm):
    """One storm, from a seed, in one of the modes."""

    def __init__(self, seed: int, workers: int, rounds: int, mode: Mode, **options: Any) -> None:
        self.options = RoundOptions(**options)
        self.spec = replace(SPEC, mode=mode, rounds=self.options)
        self.histories: dict[RoundId, tuple[Any, ...]] = {}
        self.delays: Counter[int] = Counter()
        self.told: defaultdict[RoundId, set[str]] = defaultdict(set)
        super().__init__(seed, workers, rounds)

    def born(self, name: str) -> Learner:
        self.incarnations += 1
        state = DaemonState(name, 1, "net", self.workers)
        player = Learner(name, self.incarnations, state, self.rounds)
        player.history = (("begin", name, self.incarnations),)
        self.lives.append(player)
        return player

    def ask(self, player: Player) -> None:
        """Offer the next gradient, computed from the model as it is."""
        assert isinstance(player, Learner)
        if player.asked >= self.rounds or player.state.reducing.open or not player.has_model or player.fetching:
            return
        if player.fetched is not None:  # the model was fetched while this one was computed
            self.install(player)
            return
        reduce = ReduceId(player.name, player.incarnation, player.asked)
        player.asked += 1
        gradients = player.kept | {tuple(reduce)}
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
        )
        self.feed(player, act.ReduceCalled(request=request))

    def hear(self, player: Player) -> None:
        known = Reduce | CancelReduce | ReduceSettled | ReduceFailed | PassReduce | BeginState | FetchState | GiveState
        if player.down and isinstance(told := player.down.popleft(), known):
            self.feed(player, told)

    def move(self, player: Player) -> None:
        """Let a worker's attempt end, or the state come that it fetches."""
        assert isinstance(player, Learner)
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

    def post(self, instructions: list[Instruction]) -> None:
        for told in instructions:
            if isinstance(told, Reduce):
                self.told[told.round].add(told.to)
        super().post(instructions)

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
        lists = [p.gradients[plans[p.name].reduce] for p in self.players if p.name in members]
        total = frozenset().union(*lists)
        assert len(total) == sum(map(len, lists)) == plan.updates, f"{plan.round}: {lists}, told {plan.updates}"
        return total

    def feed(self, player: Player, event: act.DaemonEvent) -> None:
        assert isinstance(player, Learner)
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

    def settled(self, player: Learner, plan: Reduce) -> None:
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
            bound = {Mode.ELASTIC: self.options.tau_max}.get(self.spec.mode, 0)
            assert 0 <= delay <= bound, f"{player.name}: {plan.reduce} has delay {delay}"
            gradients = player.gradients[plan.reduce]
            assert gradients <= player.result, f"{player.name}: {gradients} are not in {plan.round}"
            assert not gradients & (player.included | player.dropped), f"{gradients} had an outcome before"
            player.included |= gradients
            player.kept = frozenset()
            if player.fetching is None:
                self.install(player)
                self.apply(player)

    def passed(self, player: Learner, action: act.PassOver) -> None:
        gradients = player.gradients[action.reduce]
        assert not gradients & (player.included | player.dropped), f"{gradients} had an outcome before"
        assert action.keep == (self.spec.mode is Mode.PARTIAL) or not action.keep, "only partial rounds keep gradients"
        player.kept = gradients if action.keep else frozenset()
        player.dropped |= frozenset() if action.keep else gradients
        if player.fetching is None:
            self.install(player)
            self.apply(player)

    def install(self, player: Learner) -> None:
        if player.fetched is not None:
            player.version, player.history = player.fetched
            player.fetched = None

    def apply(self, player: Learner) -> None:
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

    def fetch(self, player: Learner, plan: FetchState) -> None:
        """Let the state come, once the peer's training thread has applied what is wanted."""
        peer = next((p for p in self.players if p.name == plan.peer.worker), None)
        assert peer is None or isinstance(peer, Learner)
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
    def is_to_give(peer: Learner, plan: FetchState) -> bool:
        return any(isinstance(told, GiveState) and told.peer.ticket == plan.peer.ticket for told in peer.down)

    def check(self) -> None:
        """Every gradient has its outcome, or is kept for a step that was not made."""
        for player in self.lives:
            assert isinstance(player, Learner)
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
