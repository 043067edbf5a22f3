"""The simulated data connections of a worker: one attempt to push an update or to fetch a model each.

Does what ``worker_daemon/sending.py`` does, with a connection of its own for every attempt.
"""

from __future__ import annotations

from collections.abc import Callable

from mlfabric.protocol import Dropped, DropReason, Fetch, GetId, ModelVersion, Outcome, Send, UpdateId
from mlfabric.simulator.lines import Connection, End
from mlfabric.simulator.server import Caller, SimulatedServer
from mlfabric.simulator.witness import Oddity, Truth
from mlfabric.specs import Layout
from mlfabric.worker_daemon import actions as act

__all__ = ["Attempts"]


class Attempts:
    """Every attempt under way.

    Args:
        host: the worker's.
        layout: the model's.
        servers: by address.
        truths: what each update is.
        take_in: where events for the state machine go.
    """

    def __init__(
        self,
        host: str,
        layout: Layout,
        servers: dict[str, SimulatedServer],
        truths: dict[UpdateId, Truth],
        take_in: Callable[[act.DaemonEvent], None],
    ) -> None:
        self.values: dict[GetId, int] = {}
        self._host = host
        self._layout = layout
        self._servers = servers
        self._truths = truths
        self._take_in = take_in
        self._open: dict[int, Connection] = {}
        self._count = 0

    def break_off(self) -> None:
        """Break every connection: the process is gone."""
        for connection in self._open.values():
            connection.close(End.NEAR)
        self._open.clear()

    def send(self, plan: Send) -> None:
        """Try to push an update."""
        server, truth = self._servers[plan.address], self._truths[plan.update]
        size_bytes = self._layout.size_bytes
        digest = self._layout.digest + (truth.oddity is Oddity.LAYOUT)

        def broken(detail: str) -> None:
            self._take_in(act.SendBroken(update=plan.update, ticket=plan.ticket, detail=detail))

        def answered(outcome: Outcome) -> None:
            self._close(number)
            self._take_in(act.OutcomeReceived(update=plan.update, outcome=outcome))

        def refused(reason: str) -> None:
            self._close(number)
            broken(reason)

        def granted() -> None:
            connection.move(self._host, server.host, size_bytes, plan.rate_bps, seal)

        def seal() -> None:
            if truth.oddity is Oddity.CHANGED:
                self._open.pop(number)
                connection.close(End.NEAR)
                outcome = Dropped(cause=DropReason.CHANGED)
                self._take_in(act.OutcomeReceived(update=plan.update, outcome=outcome))
            else:
                step = None if truth.oddity is Oddity.OVERFLOW else truth.step
                connection.send(End.FAR, "SEAL", lambda: server.sealed(connection.number, step))

        caller = Caller(host=self._host, granted=granted, answered=answered, refused=refused, model=_no_model)
        number, connection = self._connect(server, str(plan.update), caller, broken)
        connection.send(
            End.FAR, "OFFER", lambda: server.offered(connection.number, plan.update, plan.ticket, size_bytes, digest)
        )

    def fetch(self, plan: Fetch) -> None:
        """Try to fetch a model."""
        server = self._servers[plan.address]

        def broken(detail: str) -> None:
            self._take_in(act.FetchBroken(get=plan.get, ticket=plan.ticket, detail=detail))

        def refused(reason: str) -> None:
            self._close(number)
            broken(reason)

        def model(version: ModelVersion, value: int) -> None:
            self._close(number)
            self.values[plan.get] = value
            self._take_in(act.ModelReceived(get=plan.get, version=version))

        caller = Caller(host=self._host, granted=_no_grant, answered=_no_answer, refused=refused, model=model)
        number, connection = self._connect(server, str(plan.get), caller, broken)
        connection.send(End.FAR, "WANT", lambda: server.wanted(connection.number, plan.get, plan.ticket))

    def _connect(
        self, server: SimulatedServer, name: str, caller: Caller, broken: Callable[[str], None]
    ) -> tuple[int, Connection]:
        self._count += 1
        number = self._count

        def broke() -> None:
            self._open.pop(number, None)
            broken("the connection broke")

        connection = server.connect(f"{name} at {server.name}", caller, broke)
        self._open[number] = connection
        return number, connection

    def _close(self, number: int) -> None:
        self._open.pop(number).end()


def _no_grant() -> None:
    raise AssertionError("a get was granted as if it were an update")


def _no_answer(outcome: Outcome) -> None:
    raise AssertionError(f"a get was answered with {outcome}")


def _no_model(version: ModelVersion, value: int) -> None:
    raise AssertionError(f"an update was answered with model {version}")
