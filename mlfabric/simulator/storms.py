"""What goes wrong in a simulated fabric, and how often: deaths, hangs, partitions, slow links, full disks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from mlfabric.network import down_link, up_link
from mlfabric.protocol import JobClaim, LinkRate, LinksReported, ModelRemoved, ModelVersion, Resume
from mlfabric.simulator.aggregator import SimulatedAggregator
from mlfabric.simulator.fabric import Fabric
from mlfabric.simulator.part_witness import PartWitness
from mlfabric.simulator.process_states import NATURE
from mlfabric.simulator.replica import SimulatedReplica
from mlfabric.simulator.server import SimulatedServer
from mlfabric.simulator.worker import SimulatedWorker

__all__ = ["Storm"]

Mortal = SimulatedWorker | SimulatedServer | SimulatedAggregator | SimulatedReplica

MONITOR_LAG_NS = 200_000_000
RESTART_NS = 100_000_000
SHORT_NS, LONG_NS = 50_000_000, 1_000_000_000
COME_BACK = 0.75
LINK_SHARES = (0.02, 0.1, 0.5, 1.0, 1.0, 2.0)
MOST_AT_ONCE = 4
KEPT = 0.2


class Storm:
    """Lets go wrong what the configuration says, as long as it storms."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._world = fabric.world
        self._monitor_back_ns = 0
        self._jobs = 0

    def start(self) -> None:
        """Begin."""
        fabric, faults, config = self._fabric, self._fabric.config.faults, self._fabric.config
        streams: list[tuple[float, Callable[[], Collection[Mortal]]]] = [
            (faults.worker_stream_hz * config.workers, lambda: fabric.workers),
            (faults.server_stream_hz * config.servers, fabric.servers.values),
            (faults.aggregator_stream_hz * config.aggregators, lambda: fabric.aggregators),
            (faults.replica_stream_hz * config.replicas, fabric.followers.living.values),
        ]
        for hz, members in streams:
            self._now_and_again(hz, partial(self._break_stream, members))
        for hz, fault in (
            (faults.crash_hz, self._crash),
            (faults.aggregator_hz * config.aggregators, self._crash_aggregator),
            (faults.scheduler_hz, self._restart_scheduler),
            (faults.rollback_hz, self._roll_back),
            (faults.link_hz, self._change_link),
            (faults.replica_hz * config.replicas, fabric.followers.crash),
            (faults.server_hz * config.servers, self._crash_server),
            (faults.hang_hz, self._hang),
            (faults.cut_hz, self._cut),
            (faults.disk_hz, self._fill_disk),
            (faults.monitor_hz, self._crash_monitor),
            (faults.several_hz, self._several),
            (faults.job_hz, self._end_job),
        ):
            self._now_and_again(hz, fault)
        if faults.job_hz and config.shards > 1:
            self._remove_torn()

    def _now_and_again(self, hz: float, fault: Callable[[], None]) -> None:
        if hz <= 0:
            return

        def happen() -> None:
            if self._world.is_stormy:
                fault()
                self._now_and_again(hz, fault)

        self._world.later(self._world.gap_ns(hz), "fault", happen)

    def _several(self) -> None:
        """Let several things go wrong at one instant: a rack loses its power, a node is drained."""
        kinds = [self._crash, self._crash_server, self._restart_scheduler, self._hang, self._roll_back]
        kinds += [self._crash_aggregator] * bool(self._fabric.aggregators)
        kinds += [self._fabric.followers.crash] * bool(self._fabric.followers.living)
        self._world.fault("several at once")
        for _ in range(self._world.rng.randint(2, MOST_AT_ONCE)):
            self._world.rng.choice(kinds)()

    # Streams

    def _break_stream(self, members: Callable[[], Collection[Mortal]]) -> None:
        """Break the stream of one of these members, if there are any."""
        among = list(members())
        stream = self._world.rng.choice(among).session.stream if among else None
        if stream is not None:
            self._world.fault("stream broke", stream.name)
            stream.break_up()

    # Deaths

    def _crash(self) -> None:
        world, workers = self._world, self._fabric.workers
        index = world.rng.randrange(len(workers))
        worker = workers[index]
        if self._dies("worker died", worker, workers):
            job = replace(worker.job, resume=Resume.GO_ON)
            new = workers[index] = self._fabric.worker(index, worker.incarnation + 1, job)
            world.later(world.pause_ns(RESTART_NS), f"{new.name} starts again", new.start, new.process)

    def _dies(self, what: str, member: Mortal, all_of_them: Sequence[Mortal]) -> bool:
        """Let a member die, if it is alive; tell whether it is to come back, as the last one always does."""
        if not member.is_alive:
            return False
        self._world.fault(what, member.session.name)
        member.die()
        return self._world.rng.random() < COME_BACK or not any(other.is_alive for other in all_of_them)

    def _end_job(self) -> None:
        """Let all workers of a model leave, each in its time, and those of another job come meanwhile."""
        world, workers = self._world, self._fabric.workers
        model = world.rng.choice(workers).spec.name
        of_it = [index for index, worker in enumerate(workers) if worker.spec.name == model]
        self._jobs += 1
        resume, keep = world.rng.choice((Resume.ANEW, Resume.GO_ON)), world.chance(KEPT)
        job = JobClaim(job=f"job {self._jobs}", workers=len(of_it), keep=keep, resume=resume)
        world.fault("job is over", model, resume.value)
        for index in of_it:
            former = workers[index]
            new = workers[index] = self._fabric.worker(index, former.incarnation + 1, job)
            world.later(world.pause_ns(SHORT_NS), f"{former.name} leaves", partial(_leave, former), former.process)
            world.later(world.pause_ns(RESTART_NS), f"{new.name} of {job.job} starts", new.start, new.process)

    def _remove_torn(self) -> None:
        """Let somebody remove, now and again, what is left of a model that is cut if other parts of it are gone.

        So it is if a server was away while the model ended, and a new scheduler does not know of that.
        """
        scheduler, servers = self._fabric.scheduler, self._fabric.servers.values()
        are_here = all(server.is_alive and scheduler.state.context.is_here(server.name) for server in servers)
        torn = [name for name, whole in scheduler.state.wholes.items() if not whole.has_all_parts]
        for name in torn if are_here else ():
            self._world.note(f"somebody removes {name}")
            scheduler.take_in(ModelRemoved(model=name))
        if self._world.is_stormy or torn or not are_here:
            self._world.later(LONG_NS, "is there a part alone", self._remove_torn, NATURE)

    def _crash_aggregator(self) -> None:
        world, aggregators = self._world, self._fabric.aggregators
        index = world.rng.randrange(len(aggregators))
        former = aggregators[index]
        if self._dies("aggregator died", former, aggregators):
            new = aggregators[index] = self._fabric.aggregator(index, former.incarnation + 1)
            world.later(world.pause_ns(RESTART_NS), f"{new.name} starts again", new.session.join, new.process)

    def _restart_scheduler(self) -> None:
        self._world.fault("scheduler died")
        # What a new scheduler hears first of such members is not promised, see design, section 6.
        self._fabric.followers.end_outdated()
        self._fabric.scheduler.restart()

    def _crash_monitor(self) -> None:
        """Let nothing be reported of links for a while."""
        self._world.fault("monitor died")
        self._monitor_back_ns = self._world.now_ns + self._world.pause_ns(LONG_NS)

    def _crash_server(self) -> None:
        """Let a server of whole models die: its replica takes its place, or it goes on from its newest checkpoints."""
        server = self._world.rng.choice(list(self._fabric.servers.values()))
        if server.is_alive and self._fabric.followers.can_replace(server.name):
            self._world.fault("server died", server.name)
            server.die()
            if self._fabric.config.faults.job_hz:
                self._look_later(server)
            return
        is_followed = server.name in self._fabric.followers.living
        has_all = server.checkpoints.keys() >= server.state.models.keys() or self._fabric.config.faults.amnesia > 0
        if self._fabric.config.shards > 1 or is_followed or not (server.is_alive and has_all):
            return
        self._world.fault("server died", server.name)
        server.die()
        self._start_again_later(server)

    def _look_later(self, former: SimulatedServer) -> None:
        """Look after a while whether a replica has taken a server's place; what it had may have ended with its job."""
        self._world.later(LONG_NS, f"is there {former.name}", partial(self._start_if_vacant, former), NATURE)

    def _start_if_vacant(self, former: SimulatedServer) -> None:
        if self._fabric.servers[former.name] is not former:
            return
        if self._fabric.followers.can_replace(former.name):
            self._look_later(former)
        else:
            self._resume(former)

    def _start_again_later(self, former: SimulatedServer) -> None:
        delay_ns = self._world.pause_ns(RESTART_NS)
        self._world.later(delay_ns, f"{former.name} starts again", partial(self._resume, former), NATURE)

    def _resume(self, former: SimulatedServer) -> None:
        if self._world.has_full_disk(former.host):  # its term cannot be written down
            self._start_again_later(former)
            return
        witness, checkpoints = self._fabric.witness, former.checkpoints
        if self._world.chance(self._fabric.config.faults.amnesia):
            self._world.note(f"{former.name} has forgotten everything")
            checkpoints = {}
        for name in former.state.models:
            if name in checkpoints:
                witness.resumes(name, checkpoints[name].holds.version.number)
            else:
                witness.forgets(name)
        self._fabric.resumed(former, checkpoints.values()).session.join()

    def _roll_back(self) -> None:
        """Let all servers of a model that is cut die, one after the other; then they go on from older checkpoints.

        Or they begin with nothing.
        """
        servers = list(self._fabric.servers.values())
        if self._fabric.config.shards == 1 or not all(server.is_alive for server in servers):
            return
        common = set.intersection(*(set(server.common) for server in servers))
        newest = min((s.version for server in servers for s in server.stores.values()), default=0)
        older = sorted(version for version in common if version.number < newest - 1)
        forgets = self._world.chance(self._fabric.config.faults.amnesia)
        if not (older or forgets):
            return
        version = None if forgets else self._world.rng.choice(older)
        self._world.fault("servers died", version or "and forget everything")
        for server in servers:
            delay_ns = self._world.pause_ns(RESTART_NS)
            self._world.later(delay_ns, f"{server.name} dies", partial(self._die, server, version))

    def _die(self, server: SimulatedServer, version: ModelVersion | None) -> None:
        server.die()
        servers = list(self._fabric.servers.values())
        if any(server.is_alive for server in servers):
            return
        assert isinstance(self._fabric.witness, PartWitness), "models that are cut have a witness of their own"
        if not all(version in server.common for server in servers):  # the model has ended meanwhile
            version = None
        if version is None:
            self._fabric.witness.forgets_all()
        else:
            self._fabric.witness.rolls_back(version.number)
        for former in servers:
            new = self._fabric.resumed(former, () if version is None else former.common[version])
            delay_ns = self._world.pause_ns(RESTART_NS)
            self._world.later(delay_ns, f"{new.name} starts again", new.session.join, new.process)

    # Hangs

    def _hang(self) -> None:
        """Stop a process (SIGSTOP); whoever answers no ping for long counts as silent."""
        world, scheduler = self._world, self._fabric.scheduler
        process = world.rng.choice([p for p in self._fabric.processes() if not p.is_stopped] or [NATURE])
        if process is NATURE:
            return
        span_ns = world.pause_ns(world.rng.choice((SHORT_NS, LONG_NS)))
        world.fault("hung", process.name, f"{span_ns / 1e6:.0f} ms")
        world.stop(process)
        world.later(span_ns, f"{process.name} goes on", partial(world.go_on, process), NATURE)
        if span_ns > world.config.answer_ns and process is not scheduler.process:
            what = f"{process.name} answers no ping"
            world.later(world.config.answer_ns, what, partial(scheduler.unanswered, process), scheduler.process)

    # Networks and disks

    def _hosts(self) -> list[str]:
        fabric = self._fabric
        hosts = [*(w.host for w in fabric.workers), *(s.host for s in fabric.servers.values())]
        return [*hosts, *(a.host for a in fabric.aggregators)]

    def _change_link(self) -> None:
        world, config, scheduler = self._world, self._fabric.config, self._fabric.scheduler
        place = world.rng.choice(self._hosts())
        is_up = world.rng.random() < 0.5
        usual_bps = config.server_bps if place.startswith("host of server") else config.link_bps
        bps = round(usual_bps * world.rng.choice(LINK_SHARES))
        world.fault("link changed", place, "up" if is_up else "down", bps)
        self._fabric.flows.set_rate(up_link(place) if is_up else down_link(place), bps)
        event = LinksReported(monitor="monitor", rates=(LinkRate(host=place, up=is_up, bps=bps, age_ns=0),))
        delay_ns = max(0, self._monitor_back_ns - world.now_ns) + world.pause_ns(MONITOR_LAG_NS)
        world.later(delay_ns, "the monitor reports", lambda: scheduler.take_in(event), scheduler.process)

    def _cut(self) -> None:
        """Cut two hosts off from each other, in one direction or both; some lines between them break."""
        world, rng = self._world, self._world.rng
        places = [*self._hosts(), *(r.host for r in self._fabric.followers.living.values())]
        one, other = rng.choice(places), rng.choice([*places, *[self._fabric.scheduler.process.host] * len(places)])
        if one == other:
            return
        ways = rng.choice(([(one, other)], [(other, one)], [(one, other), (other, one)]))
        span_ns = world.pause_ns(rng.choice((SHORT_NS, LONG_NS)))
        world.fault("cut", ways, f"{span_ns / 1e6:.0f} ms")
        for way in ways:
            world.cuts.cut(*way, world.now_ns + span_ns)
        self._fabric.flows.cuts_changed()
        world.later(span_ns, f"{one} and {other} reach each other again", self._heal, NATURE)
        for line in world.lines_across(one, other):
            if rng.random() < 0.5:
                delay_ns = min(span_ns, world.pause_ns(world.config.notice_ns))
                world.later(delay_ns, f"{line.name} is given up", line.break_up, NATURE)

    def _heal(self) -> None:
        self._world.cuts.forget(self._world.now_ns)
        self._fabric.flows.cuts_changed()

    def _fill_disk(self) -> None:
        """Let nothing be written for a while where servers and the scheduler write."""
        world = self._world
        hosts = [server.host for server in self._fabric.servers.values()]
        host = world.rng.choice([*hosts, self._fabric.scheduler.process.host])
        world.fault("disk full", host)
        world.full_until_ns[host] = world.now_ns + world.pause_ns(LONG_NS)


def _leave(worker: SimulatedWorker) -> None:
    """Let a worker say good-bye, if it is there."""
    if worker.is_alive:
        worker.session.leave(worker.incarnation)
        worker.close()
