"""The ends of simulated data connections that take in, and what they do to the other ends: a method for each frame."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from mlfabric.aggregator.actions import HandModelOn
from mlfabric.protocol import GetId, ModelVersion, Outcome, TransferId, UpdateId
from mlfabric.server.actions import Forget, Grant, ServeModel
from mlfabric.simulator.double import ReceiveBuffers
from mlfabric.simulator.exact import Image
from mlfabric.simulator.member import SimulatedMember
from mlfabric.simulator.payloads import Feed, Payload
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.simulated_connections import Connection, End
from mlfabric.simulator.surroundings import Surroundings
from mlfabric.transfer.offers import (
    Abandon,
    Answer,
    GetBroken,
    GetServed,
    Offered,
    PayloadReceived,
    Refuse,
    Report,
    TransferBroken,
    Wanted,
)
from mlfabric.values import dataclass

__all__ = ["BufferedReceiver", "Caller", "Receiver"]

GrantT = TypeVar("GrantT")


def _unexpected(*frame: Any) -> NoReturn:
    raise AssertionError(f"a frame came that was not asked for: {frame}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What the end that opened a connection does on each frame.

    Args:
        process: that opened it.
        refused: this transfer will not be.
        granted: its bytes may come.
        answered: what became of the updates in its transfer.
        chunks: in how many a model is sent to it.
        comes: a model of this version begins to arrive, in so many chunks.
        payload: a chunk of the model.
    """

    process: Process
    refused: Callable[[str], None]
    granted: Callable[[], None] = _unexpected
    answered: Callable[[dict[UpdateId, Outcome]], None] = _unexpected
    chunks: int = 1
    comes: Callable[[ModelVersion, int], None] = _unexpected
    payload: Callable[[int, Image | None], None] = _unexpected


@dataclass(slots=True, eq=False)
class _Serving:
    """A model that is being sent.

    Args:
        get: which asked for it.
        source: the get that brings the model here, if it has to be brought.
        over: called once at the end, good or bad.
    """

    get: GetId
    source: GetId | None
    over: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Line(Generic[GrantT]):
    """One connection and the transfer that it carries.

    Args:
        whole: the chunks of what is so small that it came with its offer.
        grant: what may come now.
    """

    connection: Connection
    caller: Caller
    transfer: TransferId | None = None
    get: GetId | None = None
    whole: dict[int, Image | None] = field(default_factory=dict)
    grant: GrantT | None = None
    serving: _Serving | None = None


class Receiver(SimulatedMember, Generic[GrantT]):
    """The end that is connected to: a server, a replica or an aggregator.

    It does what ``transfer/served_connections.py`` does.

    Attributes:
        chunks: in how many it takes what is sent to it.
    """

    chunks = 1

    def __init__(self, around: Surroundings, name: str, incarnation: int, address: str, process: Process) -> None:
        super().__init__(around, name, incarnation, address, process)
        self._lines: dict[int, _Line[GrantT]] = {}
        self._numbers = 0
        self._doing = {
            Answer: self._answer,
            Refuse: self._refuse,
            Abandon: self._abandon,
            Report: self._report,
        }

    def _end(self) -> None:
        """Break every connection, and send no Tick any more: the process is gone, or is something else now."""
        for line in self._lines.values():
            line.connection.close(End.FAR)
        self._lines.clear()
        self._stop_timer()

    # Frames in

    def connect(self, name: str, caller: Caller, broke: Callable[[], None]) -> Connection:
        """Open a connection to it."""
        self._numbers += 1
        number = self._numbers

        def ended(end: End) -> None:
            if end is End.NEAR:
                broke()
            else:
                self._broke(number, "it broke")

        connection = Connection(self._world, self._around.flows, number, name, ended, caller.process, self.process)
        self._lines[number] = _Line(connection, caller)
        return connection

    def offered(self, offer: Offered, whole: dict[int, Image | None]) -> None:
        """Read an OFFER frame; ``whole`` are the chunks of what is so small that it comes with its offer."""
        line = self._lines[offer.connection]
        line.transfer, line.whole = offer.transfer, whole
        self._take_in(offer)

    @abstractmethod
    def payload(self, number: int, place: int, chunk: Image | None) -> None:
        """Read a chunk of a payload."""

    @abstractmethod
    def sealed(self, number: int) -> None:
        """Read the seal of a payload."""

    def taken_back(self, number: int) -> None:
        """Read a REFUSE frame: the sender takes its payload back, and the connection ends with it."""
        self._fail(number, "a REFUSE frame came")

    def wanted(self, want: Wanted) -> None:
        """Read a WANT frame."""
        self._lines[want.connection].get = want.get
        self._take_in(want)

    def _fail(self, number: int, detail: str) -> None:
        """Close a connection whose other end cannot be served."""
        self._lines[number].connection.close(End.FAR)
        self._broke(number, detail)

    def _broke(self, number: int, detail: str) -> None:
        line = self._lines.pop(number, None)
        if line is None:
            return
        if line.transfer is not None:
            self._take_in(TransferBroken(transfer=line.transfer, connection=number, detail=detail))
        get = line.get
        if line.serving is not None:
            line.serving.over()
            get = line.serving.get
        if get is not None:
            self._take_in(GetBroken(get=get, connection=number, detail=detail))

    # Frames out

    def _report(self, action: Report) -> None:
        self.session.send(action.event)

    def _may_be_lost(self, action: Answer) -> bool:
        """Tell whether a connection may break just before this arrives."""
        return True

    def _answer(self, action: Answer) -> None:
        if (line := self._ended(action.connection)) is not None:
            if self._may_be_lost(action) and self._world.chance(self._world.config.faults.outcome_lost):
                self._world.fault("outcome lost", action.outcomes)
                line.connection.break_up()
            line.connection.send(End.NEAR, "OUTCOME", partial(line.caller.answered, dict(action.outcomes)))

    def _refuse(self, action: Refuse) -> None:
        if (line := self._ended(action.connection)) is not None:
            line.connection.send(End.NEAR, "REFUSE", partial(line.caller.refused, action.reason))

    def _abandon(self, action: Abandon) -> None:
        if self._ended(action.connection) is not None:
            self._fail(action.connection, "it was closed at this end")

    def _ended(self, number: int) -> _Line[GrantT] | None:
        """Return a connection whose transfer has ended."""
        line = self._lines.get(number)
        if line is not None:
            line.transfer = line.get = line.grant = None
            line.whole = {}
        return line

    # Models

    def _send_model(
        self,
        action: ServeModel | HandModelOn,
        payload: Payload,
        over: Callable[[], None],
        source: GetId | None = None,
    ) -> None:
        """Send a model over a connection that is there, as it comes."""
        line = self._lines[action.connection]
        line.get, line.serving = None, _Serving(action.get, source, over)
        line.connection.send(End.NEAR, "MODEL", partial(line.caller.comes, action.version, payload.count))
        sent = partial(self._sent_model, action)
        Feed(line.connection, End.NEAR, action.rate_bps, payload, line.caller.payload, sent)

    def _sent_model(self, action: ServeModel | HandModelOn) -> None:
        line = self._lines[action.connection]
        assert line.serving is not None, f"{action} was carried out"
        line.serving.over()
        line.serving = None
        self._take_in(GetServed(get=action.get, connection=action.connection))

    def _cannot_send(self, action: ServeModel | HandModelOn, detail: str) -> None:
        self._take_in(GetBroken(get=action.get, connection=action.connection, detail=detail))


class BufferedReceiver(Receiver[Grant]):
    """One that takes every transfer in a buffer of its own."""

    def __init__(self, around: Surroundings, name: str, incarnation: int, address: str, process: Process) -> None:
        super().__init__(around, name, incarnation, address, process)
        self.buffers = ReceiveBuffers()
        self._doing |= {Grant: self._grant, Forget: self._forget}

    def payload(self, number: int, place: int, chunk: Image | None) -> None:
        """Read a chunk of a payload."""
        transfer = self._lines[number].transfer
        assert transfer is not None, "a payload came that was not granted"
        self.buffers.put(transfer, number, place, chunk)

    def sealed(self, number: int) -> None:
        """Read the seal of a payload."""
        transfer = self._lines[number].transfer
        assert transfer is not None, "a seal came for what was not granted"
        self.buffers.seal(transfer, number)
        self._take_in(PayloadReceived(transfer=transfer, connection=number))

    def _grant(self, action: Grant) -> None:
        line = self._lines[action.connection]
        self.buffers.reserve(action.transfer, action.connection)
        if not line.whole:
            line.connection.send(End.NEAR, "GRANT", line.caller.granted)
            return
        for place, chunk in line.whole.items():
            self.payload(action.connection, place, chunk)
        self.sealed(action.connection)

    def _forget(self, action: Forget) -> None:
        number = self.buffers.forget(action.transfer)
        line = self._lines.get(number) if number is not None else None
        filling = line is not None and line.transfer == action.transfer and line.connection.is_open
        assert not filling, f"{action.transfer} lost its buffer while connection {number} was filling it"
