"""A scheduler and the workers of an AllReduce job, played by hand: who says and hears what, and when the bytes move."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mlfabric.model.specs import Layout, Member, Method, ModelSpec, Role, TensorSpec, Term
from mlfabric.protocol import (
    CancelReduce,
    Instruction,
    MemberEvent,
    MemberJoined,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    ReduceSettled,
    Tick,
    Welcome,
)
from mlfabric.scheduler.context import SchedulerConfig
from mlfabric.scheduler.state import SchedulerState
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.actions import DaemonEvent, Request
from mlfabric.worker_daemon.state import DaemonState

__all__ = ["Player", "Team"]

SPEC = ModelSpec(
    name="net", layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)), method=Method.ALL_REDUCE
)
TOLD = Reduce | CancelReduce | ReduceSettled | ReduceFailed


@dataclass
class Player:
    """A worker: its state machine, its stream, and the attempt that it carries out."""

    name: str
    state: DaemonState
    up: deque[MemberEvent] = field(default_factory=deque)
    down: deque[Instruction] = field(default_factory=deque)
    attempt: Reduce | None = None
    asked: int = 0
    finished: int = 0


class Team:
    """All of them."""

    def __init__(self, workers: int, size_bytes: int) -> None:
        self.now_ns = 0
        self.size_bytes = size_bytes
        self.state = SchedulerState(SchedulerConfig(term=Term(1, 0), ticket_secret=b"sixteen bytes or"))
        self.players = [Player(f"w{i}", DaemonState(f"w{i}")) for i in range(workers)]

    def incarnation(self, player: Player) -> int:
        """Return that of a player's only life."""
        return 1 + self.players.index(player)

    def join(self, player: Player) -> None:
        name = player.name
        member = Member(name=name, role=Role.WORKER, incarnation=self.incarnation(player), host=f"h-{name}")
        answers = self.state.handle(MemberJoined(member=member, spec=SPEC), self.now_ns)
        player.down.clear()
        player.up = deque([player.state.holds()])
        self.post([answer for answer in answers if not isinstance(answer, Welcome)])

    def ask(self, player: Player) -> None:
        """Ask for the next AllReduce."""
        request = ReduceRequested(
            reduce=ReduceId(player.name, self.incarnation(player), player.asked),
            model="net",
            size_bytes=self.size_bytes,
            dtype="float32",
            op=ReduceOp.SUM,
            together=len(self.players),
        )
        player.asked += 1
        self.feed(player, act.ReduceCalled(request=request))

    def hear(self, player: Player) -> None:
        told = player.down.popleft()
        if isinstance(told, TOLD):
            self.feed(player, told)

    def move(self) -> None:
        """Let everybody get the result of the attempt that all of them carry out."""
        assert len({player.attempt.round for player in self.players if player.attempt is not None}) == 1
        for player in self.players:
            assert player.attempt is not None, f"{player.name} does nothing"
            self.feed(player, act.AttemptEnded(round=player.attempt.round))

    def tick(self) -> None:
        due_ns = self.state.next_wakeup_ns(self.now_ns)
        if due_ns is not None and due_ns <= self.now_ns:
            self.tell(Tick())

    def tell(self, event: MemberEvent) -> None:
        self.post(self.state.handle(event, self.now_ns))
        self.state.validate()

    def post(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            for player in self.players:
                if player.name == instruction.to:
                    player.down.append(instruction)

    def feed(self, player: Player, event: DaemonEvent) -> None:
        for action in player.state.handle(event, self.now_ns):
            match action:
                case Request():
                    player.up.append(action.event)
                case act.StartAttempt():
                    player.attempt = action.plan
                case act.StopAttempt():
                    player.attempt = None
                case act.FinishReduce():
                    player.finished += 1
