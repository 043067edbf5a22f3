"""The replicas of a simulated fabric: how they die and come back, and what must hold once everything is quiet."""

from __future__ import annotations

from mlfabric.scheduler.replica_sending import Phase
from mlfabric.scheduler.state import SchedulerState
from mlfabric.simulator.calls import Book
from mlfabric.simulator.flows import Flows
from mlfabric.simulator.replica import SimulatedReplica
from mlfabric.simulator.scheduler import SimulatedScheduler
from mlfabric.simulator.server import SimulatedServer
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.world import World

__all__ = ["Followers"]

RESTART_NS = 100_000_000
LONG_NS = 2_000_000_000
SAME_NAME, ANOTHER_NAME, AFTER_LONG = 0.55, 0.75, 0.9


class Followers:
    """The replica of each server that has one; ``living`` maps the server to it."""

    def __init__(
        self, world: World, flows: Flows, scheduler: SimulatedScheduler, witness: Witness, book: Book, count: int
    ) -> None:
        self._world = world
        self._flows = flows
        self._scheduler = scheduler
        self._witness = witness
        self._book = book
        self._born = 0
        self.living = {f"server-{i}": self._new(f"replica-{i}", f"server-{i}") for i in range(count)}

    def _new(self, name: str, server: str) -> SimulatedReplica:
        self._born += 1
        replica = SimulatedReplica(self._world, self._flows, self._scheduler, self._witness, name, self._born, server)
        self._book.add(replica.address, replica)
        return replica

    def start(self) -> None:
        """Let each of them join."""
        for replica in self.living.values():
            replica.session.join()

    def drawn(self) -> SimulatedReplica | None:
        """Draw one, None without any."""
        replicas = list(self.living.values())
        return self._world.rng.choice(replicas) if replicas else None

    def crash(self) -> None:
        """Let one die: it comes back with nothing, soon or late, or one of another name does, or none."""
        replica = self.drawn()
        if replica is None or not replica.is_alive:
            return
        self._world.fault("replica died", replica.name)
        replica.die()
        draw = self._world.rng.random()
        if draw >= AFTER_LONG:
            del self.living[replica.server]
            return
        name = replica.name if draw < SAME_NAME or draw >= ANOTHER_NAME else f"replica {self._born}"
        new = self.living[replica.server] = self._new(name, replica.server)
        delay_ns = self._world.pause_ns(LONG_NS if draw >= ANOTHER_NAME else RESTART_NS)
        self._world.later(delay_ns, f"{name} starts", new.session.join, new.process)

    # The end

    def check_quiet(self, state: SchedulerState, servers: dict[str, SimulatedServer]) -> None:
        """Check that each replica follows within the bound, and that nothing is on its way to it."""
        for name, model in state.models.items():
            replication, server = model.replication, servers[model.pushes.server]
            replica = self.living.get(server.name)
            busy = replication.in_flight
            assert not busy, f"the scheduler still counts on {busy} to the replica of {name}"
            if replica is None:
                assert replication.phase is Phase.NONE, f"{name} has no replica, but {replication.phase.value}"
                bounds = server.state.models[name].lead.is_followed
                assert not bounds, f"the primary of {name} still keeps to the bound of a replica that is gone"
            elif model.pushes.initialised:
                self._check_follows(name, replica, replication.phase)

    def _check_follows(self, model: str, replica: SimulatedReplica, phase: Phase) -> None:
        assert phase is Phase.FOLLOWING, f"{replica.name} of {model} does not follow in the end: {phase.value}"
        assert self._witness.leads.is_promised(model), f"{replica.name} of {model} is too far behind in the end"
        hosted = replica.state.models[model]
        self._witness.accounts(model, hosted.version.number, hosted.samples.counts())
        assert hosted.is_idle, f"{replica.name} could go on with {model} and does not"
        receiving = [name for name, transfer in hosted.transfers.items() if not transfer.is_held]
        assert not receiving, f"{replica.name} still waits for {receiving} of {model}"
