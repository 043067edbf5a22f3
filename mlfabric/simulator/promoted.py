"""The simulated process of a replica once it is a server. Does what ``server/replica_service.py`` does."""

from __future__ import annotations

from collections.abc import Callable

from mlfabric.protocol import MemberEvent, Welcome
from mlfabric.server.replica_actions import TakeOver
from mlfabric.server.serving import weight_buffers
from mlfabric.server.state import ServerState
from mlfabric.simulator.double import StoreDouble
from mlfabric.simulator.replica import SimulatedReplica
from mlfabric.simulator.server import SimulatedServer
from mlfabric.simulator.surroundings import Surroundings

__all__ = ["PromotedServer"]


class PromotedServer(SimulatedServer):
    """A server that was a replica, with what that one had.

    Args:
        replica: the same process as a replica.
        incarnation: of this server.
        action: what it takes over.
        begun: called when it is admitted for the first time, before it says what it holds.
    """

    def __init__(
        self,
        around: Surroundings,
        replica: SimulatedReplica,
        incarnation: int,
        action: TakeOver,
        begun: Callable[[PromotedServer], None],
    ) -> None:
        super().__init__(around, action.server, replica.process)
        self.promoted = self.succeeds = replica.name
        self.incarnation = incarnation
        self.address = f"{replica.address}, as {action.server}, process {incarnation}"
        self.holds = action.holds
        self._begun = begun
        self.state = ServerState(self.state.config, action.holds)
        self.epochs = {held.spec.name: held.version.epoch for held in action.holds}
        for held in action.holds:
            version, weights = replica.stores[held.spec.name]
            assert version == held.version.number, f"{replica.name} is at version {version}; it takes over {held}"
            limit = weight_buffers(held.spec) + self._world.config.weight_copies
            store = self.stores[held.spec.name] = StoreDouble(limit, held.spec.rule)
            store.resume(version, weights)
        self._drive(self.state, self._do, self._after_event)

    def admitted(self, welcome: Welcome) -> list[MemberEvent]:
        """Begin under a scheduler; return what it announces."""
        if self.promoted:
            self.promoted = ""
            self._begun(self)
            for held in self.holds:
                self._keep_first(held.spec.name)
        return super().admitted(welcome)
