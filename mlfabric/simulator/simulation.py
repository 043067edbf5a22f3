"""A whole fabric in one process and virtual time: the twin of a running one (design, section 9).

The state machines are the real ones; around them are simulated shells, links, clocks, crashes. After every event the
machines' own checks and the witness's hold, or the run ends with its seed and the last part of the story.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlfabric.network import down_link, up_link
from mlfabric.protocol import GetId, LinkRate, LinksReported, ModelVersion, TransferId, UpdateId
from mlfabric.simulator.aggregator import SimulatedAggregator
from mlfabric.simulator.calls import Book
from mlfabric.simulator.config import SimulationConfig, Summary
from mlfabric.simulator.flows import Flows
from mlfabric.simulator.followers import Followers
from mlfabric.simulator.part_server import PartServer
from mlfabric.simulator.part_witness import PartWitness
from mlfabric.simulator.part_worker import PartWorker
from mlfabric.simulator.replica import SimulatedReplica
from mlfabric.simulator.scheduler import SimulatedScheduler
from mlfabric.simulator.server import SimulatedServer
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.worker import Place, SimulatedWorker
from mlfabric.simulator.world import World
from mlfabric.specs import Layout, ModelSpec, TensorSpec

__all__ = ["Simulation"]

MONITOR_LAG_NS = 200_000_000
RESTART_NS = 100_000_000
COME_BACK = 0.75
MOST_EVENTS_AFTERWARDS = 10_000
LINK_SHARES = (0.02, 0.1, 0.5, 1.0, 1.0, 2.0)


class Simulation:
    """One simulated fabric; equal configurations give equal runs, event by event."""

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        self.world = World(config)
        self.flows = Flows(self.world)
        self.witness = Witness() if config.shards == 1 else PartWitness(config.shards)
        self.scheduler = SimulatedScheduler(self.world, self.witness)
        self.book = Book()
        self.servers = {name: self._server(name) for name in (f"server-{i}" for i in range(config.servers))}
        self.followers = Followers(self.world, self.flows, self.scheduler, self.witness, self.book, config.replicas)
        self.aggregators = [self._aggregator(f"aggregator-{i}", i, 1) for i in range(config.aggregators)]
        self.workers = [self._worker(f"worker-{i}", i, 1) for i in range(config.workers)]

    def _server(self, name: str) -> SimulatedServer:
        kind = SimulatedServer if self.config.shards == 1 else PartServer
        server = kind(self.world, self.flows, self.scheduler, self.witness, self.book, name)
        self.book.add(name, server)
        return server

    def _aggregator(self, name: str, number: int, incarnation: int) -> SimulatedAggregator:
        neighbour = f"worker-{number % self.config.workers}"
        host = f"host of {neighbour if self.config.beside_workers else name}"
        return SimulatedAggregator(self.world, self.flows, self.scheduler, self.book, name, incarnation, host)

    def _worker(self, name: str, number: int, incarnation: int) -> SimulatedWorker:
        config = self.config
        server = f"server-{number % config.servers}"
        layout = Layout((TensorSpec(name="w", shape=(config.model_bytes // 4,), dtype="float32"),))
        spec = ModelSpec(
            name=f"model of {server}" if config.shards == 1 else "model",
            layout=layout,
            rule=config.rule,
            mode=config.mode,
            slack=config.slack,
            tau_max=config.tau_max,
            server=server if config.shards == 1 else "",
            shards=config.shards,
        )
        host = f"host of {name}"
        self.flows.add_host(host)
        place = Place(
            name=name,
            incarnation=incarnation,
            host=host,
            spec=spec,
            scheduler=self.scheduler,
            book=self.book,
            witness=self.witness,
        )
        return (SimulatedWorker if config.shards == 1 else PartWorker)(self.world, place)

    # Running

    def run(self, events: int) -> Summary:
        """Run so many events, then without further faults until everything is quiet.

        Raises:
            AssertionError: something that must hold does not; with the seed and the end of the story.
        """
        try:
            self._start()
            taken = self._run(events)
            self.world.is_stormy = False
            self.world.note("the storm is over")
            taken += self._run(MOST_EVENTS_AFTERWARDS)
            assert not self.world.step(), f"something still happens after {MOST_EVENTS_AFTERWARDS} more events"
            self._check_quiet()
        except Exception as error:
            # Whatever it is: with the seed and the story it can be played again.
            error.add_note(f"{self.config}\n{self.world.story()}")
            raise
        return self._summary(taken)

    def _run(self, events: int) -> int:
        for taken in range(events):
            if not self.world.step():
                return taken
        return events

    def _start(self) -> None:
        for server in self.servers.values():
            server.session.join()
        for aggregator in self.aggregators:
            aggregator.session.join()
        self.followers.start()
        for worker in self.workers:
            self.world.later(self.world.pause_ns(self.config.compute_ns), f"{worker.place.name} starts", worker.start)
        faults = self.config.faults
        self._now_and_again(faults.worker_stream_hz * self.config.workers, self._break_worker_stream)
        self._now_and_again(faults.server_stream_hz * self.config.servers, self._break_server_stream)
        self._now_and_again(faults.aggregator_stream_hz * self.config.aggregators, self._break_aggregator_stream)
        self._now_and_again(faults.crash_hz, self._crash)
        self._now_and_again(faults.aggregator_hz * self.config.aggregators, self._crash_aggregator)
        self._now_and_again(faults.scheduler_hz, self._restart_scheduler)
        self._now_and_again(faults.rollback_hz, self._roll_back)
        self._now_and_again(faults.link_hz, self._change_link)
        self._now_and_again(faults.replica_stream_hz * self.config.replicas, self._break_replica_stream)
        self._now_and_again(faults.replica_hz * self.config.replicas, self.followers.crash)

    # Faults

    def _now_and_again(self, hz: float, fault: Callable[[], None]) -> None:
        if hz <= 0:
            return

        def happen() -> None:
            if self.world.is_stormy:
                fault()
                self._now_and_again(hz, fault)

        self.world.later(self.world.gap_ns(hz), "fault", happen)

    def _break_worker_stream(self) -> None:
        self._break_stream(self.world.rng.choice(self.workers))

    def _break_server_stream(self) -> None:
        self._break_stream(self.world.rng.choice(list(self.servers.values())))

    def _break_aggregator_stream(self) -> None:
        self._break_stream(self.world.rng.choice(self.aggregators))

    def _break_replica_stream(self) -> None:
        replica = self.followers.drawn()
        if replica is not None:
            self._break_stream(replica)

    def _break_stream(self, member: SimulatedWorker | SimulatedServer | SimulatedAggregator | SimulatedReplica) -> None:
        stream = member.session.stream
        if stream is not None:
            self.world.fault("stream broke", stream.name)
            stream.break_up()

    def _crash(self) -> None:
        index = self.world.rng.randrange(len(self.workers))
        worker = self.workers[index]
        if not worker.is_alive:
            return
        self.world.fault("worker died", worker.place.name)
        worker.die()
        if self.world.rng.random() < COME_BACK or not any(w.is_alive for w in self.workers):
            self.workers[index] = self._worker(worker.place.name, index, worker.place.incarnation + 1)
            delay_ns = self.world.pause_ns(RESTART_NS)
            self.world.later(delay_ns, f"{worker.place.name} starts again", self.workers[index].start)

    def _crash_aggregator(self) -> None:
        index = self.world.rng.randrange(len(self.aggregators))
        former = self.aggregators[index]
        if not former.is_alive:
            return
        self.world.fault("aggregator died", former.name)
        former.die()
        if self.world.rng.random() < COME_BACK or not any(a.is_alive for a in self.aggregators):
            self.aggregators[index] = self._aggregator(former.name, index, former.incarnation + 1)
            delay_ns = self.world.pause_ns(RESTART_NS)
            self.world.later(delay_ns, f"{former.name} starts again", self.aggregators[index].session.join)

    def _restart_scheduler(self) -> None:
        self.world.fault("scheduler died")
        self.scheduler.restart()

    def _roll_back(self) -> None:
        """Let all servers of a model that is cut die, one after the other; then they go on from older checkpoints."""
        servers = [server for server in self.servers.values() if isinstance(server, PartServer)]
        if not servers or not all(server.is_alive for server in servers):
            return
        common = set.intersection(*(set(server.checkpoints) for server in servers))
        newest = min((s.version for server in servers for s in server.stores.values()), default=0)
        older = sorted(version for version in common if version.number < newest - 1)
        if not older:
            return
        version = self.world.rng.choice(older)
        self.world.fault("servers died", version)
        for server in servers:
            self.world.later(
                self.world.pause_ns(RESTART_NS), f"{server.name} dies", partial(self._die, server, version)
            )

    def _die(self, server: PartServer, version: ModelVersion) -> None:
        server.die()
        servers = [server for server in self.servers.values() if isinstance(server, PartServer)]
        if any(server.is_alive for server in servers):
            return
        assert isinstance(self.witness, PartWitness), "models that are cut have a witness of their own"
        self.witness.rolls_back(version.number)
        for former in servers:
            new = PartServer(self.world, self.flows, self.scheduler, self.witness, self.book, former.name)
            incarnation = former.incarnation + 1
            new.resume(incarnation, f"{former.name} of incarnation {incarnation}", former.checkpoints[version])
            self.book.add(new.address, new)
            self.servers[new.name] = new
            self.world.later(self.world.pause_ns(RESTART_NS), f"{new.name} starts again", new.session.join)

    def _change_link(self) -> None:
        hosts = [*(w.place.host for w in self.workers), *(s.host for s in self.servers.values())]
        place = self.world.rng.choice([*hosts, *(a.host for a in self.aggregators)])
        is_up = self.world.rng.random() < 0.5
        usual_bps = self.config.server_bps if place.startswith("host of server") else self.config.link_bps
        bps = round(usual_bps * self.world.rng.choice(LINK_SHARES))
        self.world.fault("link changed", place, "up" if is_up else "down", bps)
        self.flows.set_rate(up_link(place) if is_up else down_link(place), bps)
        rate = LinkRate(host=place, up=is_up, bps=bps, age_ns=0)
        event = LinksReported(monitor="monitor", rates=(rate,))
        self.world.later(
            self.world.pause_ns(MONITOR_LAG_NS), "the monitor reports", lambda: self.scheduler.take_in(event)
        )

    # The end

    def _check_quiet(self) -> None:
        """Check that nothing is stuck and nothing is left over."""
        for worker in self.workers:
            if worker.is_alive:
                stuck = [*worker.state.pushing.pushes, *worker.state.getting.gets]
                assert not stuck, f"{worker.place.name} waits for ever for {stuck}"
        state = self.scheduler.state
        state.context.network.prune(self.world.now_ns)
        for name, model in state.models.items():
            tables = (model.pushes.waiting, model.pushes.planned, model.gets.waiting, model.gets.planned)
            left = [request for table in tables for request in table if not self._is_lost(name, request)]
            assert not left, f"the scheduler still counts on {left} of {name}"
            held = [u for u in self.witness.truths if state.context.network.reservation((name, "push", u)) is not None]
            assert not held, f"links are still reserved for {held}"
            hand_ons = model.gets.hand_ons.planned
            assert not len(model.pushes.sums), f"the scheduler still counts on {list(model.pushes.sums)} of {name}"
            assert not hand_ons, f"the scheduler still counts on {hand_ons} of {name}"
            iteration = model.pushes.iteration
            assert iteration is None, f"the scheduler still counts on {iteration} of {name}"
        for server in self.servers.values():
            self._check_quiet_server(server)
        for aggregator in self.aggregators:
            if aggregator.is_alive:
                open_there = [*aggregator.state.sums.sums, *aggregator.state.handings.handings]
                assert not open_there, f"{aggregator.name} still waits for {open_there}"
        self.followers.check_quiet(state, self.servers)
        self.witness.remembered(state)

    def _is_lost(self, model: str, request: TransferId | GetId) -> bool:
        """Tell whether an update was committed and lost; what is with a server then stays until its worker pushes."""
        whole = self.scheduler.state.models[model].pushes.whole
        return whole is not None and isinstance(request, UpdateId) and whole.lost(request) is not None

    def _check_quiet_server(self, server: SimulatedServer) -> None:
        buffers = len(server.buffers)
        for name, model in server.state.models.items():
            kept = [t for t in model.incoming.transfers if self._is_lost(name, t)]
            left = [*(t for t in model.incoming.transfers if t not in kept), *model.gets.gets]
            buffers -= len(kept)
            assert not left, f"{server.name} still waits for {left} of {name}"
            store = server.stores[name]
            assert not store.pins, f"{server.name} has {store.pins} pins on {name} that nobody needs"
            if model.initialised:
                expected = self.witness.weights(name, model.version.number)
                assert store.value == expected, f"{name} is not the sum of what was committed"
                assert store.version == model.version.number, f"{name}: store {store.version}, state {model.version}"
        assert not buffers, f"{server.name} keeps {buffers} buffers that nobody needs"

    def _summary(self, taken: int) -> Summary:
        lost = [u for u, t in self.witness.truths.items() if u not in self.witness.told]
        return Summary(
            seed=self.config.seed,
            events=taken,
            virtual_s=self.world.now_ns / 1e9 - 1,
            committed=len(self.witness.applied),
            dropped=self.witness.dropped,
            unheard=len(lost),
            gets=self.witness.gets,
            sums=self.witness.sums,
            handed_on=sum(aggregator.handed_on for aggregator in self.aggregators),
            promises=self.witness.leads.promises,
            terms_by_hole=sum(m.replication.terms_begun_by_hole for m in self.scheduler.state.models.values()),
            faults=self.world.counts,
            digest=self.world.digest,
        )
