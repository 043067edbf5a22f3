"""The replicas of a simulated fabric: how they die and come back, take their primaries' places, rest in the end."""

from __future__ import annotations

from functools import partial

from mlfabric.scheduler.followers.replica_sending import Phase
from mlfabric.scheduler.state import SchedulerState
from mlfabric.server.replica_actions import TakeOver
from mlfabric.simulator.deposed import DeposedWitness
from mlfabric.simulator.replica import SimulatedReplica
from mlfabric.simulator.server import SimulatedServer
from mlfabric.simulator.surroundings import Surroundings

__all__ = ["Followers"]

RESTART_NS = 100_000_000
LONG_NS = 2_000_000_000
SAME_NAME, ANOTHER_NAME, AFTER_LONG = 0.55, 0.75, 0.9


class Followers:
    """The replica of each server that has one; ``living`` maps the server to it."""

    def __init__(self, around: Surroundings, servers: dict[str, SimulatedServer]) -> None:
        self._around = around
        self._world = around.world
        self._witness = around.witness
        self._servers = servers
        self._born = 0
        self._deposed: list[SimulatedServer] = []
        names = list(servers)[: around.world.config.replicas]
        self.living = {name: self._new(f"replica-{i}", name) for i, name in enumerate(names)}

    def _new(self, name: str, server: str) -> SimulatedReplica:
        self._born += 1
        replica = SimulatedReplica(self._around, name, self._born, server, self._take_over)
        self._around.book.add(replica.address, replica)
        return replica

    def start(self) -> None:
        """Let each of them join."""
        for replica in self.living.values():
            replica.session.join()

    def crash(self) -> None:
        """Let one die: it comes back with nothing, soon or late, or one of another name does, or none."""
        if not self.living:
            return
        replica = self._world.rng.choice(list(self.living.values()))
        if not replica.is_alive or not self._servers[replica.server].is_alive:
            return
        if replica.heir is not None and replica.heir.is_alive:
            return  # nobody would serve until somebody starts a server, as `mlfabric up` does
        self._world.fault("replica died", replica.name)
        replica.die()
        draw = self._world.rng.random()
        if draw >= AFTER_LONG:
            del self.living[replica.server]
            return
        name = replica.name if draw < SAME_NAME or draw >= ANOTHER_NAME else f"replica {self._born}"
        self._start(name, replica.server, LONG_NS if draw >= ANOTHER_NAME else RESTART_NS)

    def _start(self, name: str, server: str, usual_ns: int) -> None:
        """Let a replica of a server begin, with nothing, after a while."""
        new = self.living[server] = self._new(name, server)
        self._world.later(self._world.pause_ns(usual_ns), f"{name} starts", new.session.join, new.process)

    # Promotion

    def can_replace(self, server: str) -> bool:
        """Tell whether a server may die because there is a replica that can take its place.

        A replica of a former model could, if no scheduler remembers that this one has ended. Then nothing is promised
        (docs/guarantees.md, "Ends that nobody remembers"), so this is not played.
        """
        replica = self.living.get(server)
        return replica is not None and replica.is_alive and replica.state.is_seeded and not replica.is_astray

    def _take_over(self, replica: SimulatedReplica, action: TakeOver) -> None:
        """Let a replica's process come as a server."""
        if replica.heir is not None:
            replica.heir.die()
        self._born += 1
        heir = SimulatedServer(self._around, action.server, replica.process)
        incarnation = self._servers[action.server].incarnation + self._born
        heir.take_over(replica, incarnation, action, partial(self._begun, replica))
        self._around.book.add(heir.address, heir)
        replica.heir = heir
        heir.session.join()

    def end_outdated(self) -> None:
        """End the servers whose places were taken, and the replicas of former models, that have not heard of it."""
        for server in self._deposed:
            if server.is_alive:
                server.die()
        self._deposed.clear()
        for replica in [replica for replica in self.living.values() if replica.is_alive and replica.is_astray]:
            replica.die()
            self._start(replica.name, replica.server, RESTART_NS)

    def _begun(self, replica: SimulatedReplica, heir: SimulatedServer) -> None:
        """Let a replica's process be a server; another replica follows it after a while."""
        former = self._servers[heir.name]
        self._world.fault("replica promoted", heir.name, "deposed" if former.is_alive else "died")
        former.depose(DeposedWitness(self._witness))
        self._deposed.append(former)
        # One that has never heard of the former server knows nothing of what that may have committed and not told.
        is_blind = former.state.term < self._around.scheduler.term
        self._servers[heir.name] = heir
        for held in heir.state.brings():
            made = [entry.under(held.version.epoch) for entry in replica.foretold[held.spec.name]]
            self._witness.promoted(held.spec.name, held.version, held.epoch_base, made, is_blind)
            weights = heir.stores[held.spec.name].weights[0]
            assert weights == self._witness.weights(held.spec.name, held.version.number), f"{heir.name} took over torn"
        replica.heir = None
        replica.retire()
        self._start(replica.name, heir.name, RESTART_NS)

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
