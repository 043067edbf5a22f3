"""The simulated data connections that a member opens: one for each transfer that it offers, or model that it wants.

Does what ``mlfabric/transfer/exchange.py`` does, with a connection of its own for every attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from mlfabric.protocol import GetId, Outcome, TransferId, UpdateId
from mlfabric.simulator.payloads import Feed, Payload
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.receiving import Caller, Receiver
from mlfabric.simulator.simulated_connections import Connection, End
from mlfabric.simulator.surroundings import Book
from mlfabric.simulator.world import Timer, World
from mlfabric.transfer.offers import Offered, SeedOffered, Wanted
from mlfabric.values import dataclass

__all__ = ["Calls", "Offer"]

KeyT = TypeVar("KeyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A transfer that is offered.

    Args:
        payload: of so many chunks.
        travels_whole: it is so small that it comes with its offer.
        seed: what comes with weights and state.
    """

    transfer: TransferId
    ticket: bytes
    payload: Callable[[int], Payload]
    digest: int
    travels_whole: bool = False
    rate_bps: int = 0
    seed: SeedOffered | None = None


class Calls(Generic[KeyT]):
    """Everything that one member offers or wants, each under a key while it is under way.

    Args:
        process: the member's.
        book: who answers where.
    """

    def __init__(self, world: World, process: Process, book: Book) -> None:
        self._world = world
        self.process = process
        self._book = book
        self._open: dict[KeyT, Connection | Timer] = {}

    def __contains__(self, key: KeyT) -> bool:
        return key in self._open

    def offer(
        self,
        key: KeyT,
        address: str,
        offered: Offer,
        answered: Callable[[dict[UpdateId, Outcome]], None],
        broke: Callable[[str], None],
        left: Callable[[Callable[[], None], Callable[[], None]], None] = lambda seal, refuse: seal(),
    ) -> bool:
        """Offer a transfer, and send it once it is granted; tell whether somebody answers.

        Args:
            address: of who is to have it.
            offered: what it is.
            answered: called with the outcomes of updates in it.
            broke: called with the reason when it is refused, its connection broke, or nobody answers.
            left: called once all of it has left, with what seals it, and with what takes it back.
        """

        def start(receiver: Receiver[Any]) -> Connection:
            payload = offered.payload(receiver.chunks)

            def granted() -> None:
                assert not offered.travels_whole, f"{offered.transfer} was granted though it came with its offer"
                sealed = partial(connection.send, End.FAR, "SEAL", partial(receiver.sealed, number))
                taken_back = partial(connection.send, End.FAR, "REFUSE", partial(receiver.taken_back, number))
                come, gone = partial(receiver.payload, number), partial(left, sealed, taken_back)
                Feed(connection, End.FAR, offered.rate_bps, payload, come, gone)

            caller = Caller(process=self.process, granted=granted, answered=answered, refused=broke)
            connection = _connected(receiver, offered.transfer, caller)
            number, whole = connection.number, dict(payload.chunks) if offered.travels_whole else {}
            offer = Offered(
                connection=number,
                transfer=offered.transfer,
                ticket=offered.ticket,
                length=payload.size_bytes,
                digest=offered.digest,
                seed=offered.seed,
            )
            connection.send(End.FAR, "OFFER", partial(receiver.offered, offer, whole))
            return connection

        return self._begin(key, address, start, broke)

    def want(self, key: KeyT, address: str, get: GetId, ticket: bytes, caller: Caller) -> None:
        """Ask for a model; ``caller`` says what is done on each frame, ``refused`` also if nobody answers."""

        def start(receiver: Receiver[Any]) -> Connection:
            connection = _connected(receiver, get, caller)
            want = Wanted(connection=connection.number, get=get, ticket=ticket)
            connection.send(End.FAR, "WANT", partial(receiver.wanted, want))
            return connection

        self._begin(key, address, start, caller.refused)

    def _begin(
        self, key: KeyT, address: str, start: Callable[[Receiver[Any]], Connection], broke: Callable[[str], None]
    ) -> bool:
        assert key not in self._open, f"{key} is under way already"
        receiver = self._book.find(address)
        if receiver is None:
            what = f"{self.process.host} finds nobody at {address}"
            self._open[key] = self._world.later(self._world.latency_ns(), what, partial(broke, what))
        else:
            self._open[key] = start(receiver)
        return receiver is not None

    def over(self, key: KeyT) -> None:
        """End what has served its purpose, or broken: the other end of one that broke is to notice that, too."""
        line = self._open.pop(key)
        if isinstance(line, Connection) and line.is_open:
            line.end()

    def mute(self, key: KeyT) -> None:
        """Hear no more of what has left; what was said of it arrives."""
        line = self._open.pop(key)
        assert isinstance(line, Connection), f"{key} has left"
        line.mute(End.NEAR)

    def give_up(self, key: KeyT) -> None:
        """End something at once, and its connection with it, if it is under way."""
        line = self._open.pop(key, None)
        if isinstance(line, Connection):
            line.close(End.NEAR)
        elif line is not None:
            line.cancel()

    def break_off(self) -> None:
        """Give up everything; when the process is gone, this is all there is to it."""
        for key in list(self._open):
            self.give_up(key)


def _connected(receiver: Receiver[Any], what: TransferId | GetId, caller: Caller) -> Connection:
    return receiver.connect(f"{what} at {receiver.name}", caller, partial(caller.refused, "the connection broke"))
