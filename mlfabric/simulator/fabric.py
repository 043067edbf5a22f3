"""The members of a simulated fabric, and how each of them begins: the first time, and again after its death."""

from __future__ import annotations

from collections.abc import Collection

from mlfabric.model.specs import Layout, ModelSpec, TensorSpec
from mlfabric.protocol import JobClaim
from mlfabric.simulator.aggregator import SimulatedAggregator
from mlfabric.simulator.config import SimulationConfig
from mlfabric.simulator.double import Checkpoint
from mlfabric.simulator.followers import Followers
from mlfabric.simulator.link_sharing import Flows
from mlfabric.simulator.part_witness import PartWitness
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.replica import SimulatedReplica
from mlfabric.simulator.scheduler import SimulatedScheduler
from mlfabric.simulator.server import SimulatedServer
from mlfabric.simulator.surroundings import Book, Surroundings
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.worker import SimulatedWorker
from mlfabric.simulator.world import STORY_LINES, World

__all__ = ["Fabric"]


class Fabric:
    """All members, and the world that they share.

    Args:
        config: of the fabric.
        story_lines: how many of the last events are remembered.
    """

    def __init__(self, config: SimulationConfig, story_lines: int = STORY_LINES) -> None:
        self.config = config
        self.world = World(config, story_lines)
        self.flows = Flows(self.world)
        self.witness = Witness() if config.shards == 1 else PartWitness(config.shards)
        self.scheduler = SimulatedScheduler(self.world, self.witness)
        self.around = Surroundings(self.world, self.flows, self.scheduler, self.witness, Book())
        self.servers = {name: self._server(name) for name in (f"server-{i}" for i in range(config.servers))}
        self.followers = Followers(self.around, self.servers)
        self.aggregators = [self.aggregator(i, 1) for i in range(config.aggregators)]
        self.workers = [self.worker(i, 1) for i in range(config.workers)]

    def _server(self, name: str) -> SimulatedServer:
        server = SimulatedServer(self.around, name)
        self.around.book.add(name, server)
        return server

    def aggregator(self, number: int, incarnation: int) -> SimulatedAggregator:
        """Return a new process of an aggregator."""
        name, neighbour = f"aggregator-{number}", f"worker-{number % self.config.workers}"
        host = f"host of {neighbour if self.config.beside_workers else name}"
        return SimulatedAggregator(self.around, name, incarnation, host)

    def worker(self, number: int, incarnation: int, job: JobClaim | None = None) -> SimulatedWorker:
        """Return a new process of a worker, of the first job unless another one is given."""
        config, name = self.config, f"worker-{number}"
        server = f"server-{number % config.servers}"
        layout = Layout((TensorSpec(name="w", shape=(config.model_bytes // 4,), dtype="float32"),))
        spec = ModelSpec(
            name=f"model of {server}" if config.shards == 1 else "model",
            layout=layout,
            rule=config.rule,
            method=config.method,
            slack=config.slack,
            workers=config.workers if config.forms else 0,
            tau_max=config.tau_max,
            server=server if config.shards == 1 else "",
            shards=config.shards,
        )
        host, first = f"host of {name}", JobClaim(job="job 0", keep=not config.faults.job_hz)
        self.flows.add_host(host)
        return SimulatedWorker(self.around, name, incarnation, host, spec, job or first)

    def resumed(self, former: SimulatedServer, checkpoints: Collection[Checkpoint]) -> SimulatedServer:
        """Return a new process of a server, which goes on from checkpoints."""
        new = SimulatedServer(self.around, former.name)
        new.resume(former, f"{former.name} of incarnation {former.incarnation + 1}", checkpoints)
        self.around.book.add(new.address, new)
        self.servers[new.name] = new
        return new

    def processes(self) -> list[Process]:
        """Return the processes of all members that are alive, and the scheduler's."""
        members: list[SimulatedWorker | SimulatedServer | SimulatedAggregator | SimulatedReplica] = [
            *self.workers,
            *self.servers.values(),
            *self.aggregators,
            *self.followers.living.values(),
        ]
        return [self.scheduler.process, *(member.process for member in members if member.is_alive)]
