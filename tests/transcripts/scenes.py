"""The scenes: a small fabric each, and what befalls it. ``SCENES`` maps the name of each to what plays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from mlfabric.aggregator.state import AggregatorState
from mlfabric.model.specs import Method
from mlfabric.network import up_link
from mlfabric.protocol import JobClaim, LinkRate, LinksReported, Resume
from mlfabric.scheduler.state import SchedulerState
from mlfabric.server.replica_state import ReplicaState
from mlfabric.server.state import ServerState
from mlfabric.simulator.config import FaultRates
from mlfabric.simulator.server import SimulatedServer
from mlfabric.worker_daemon.state import DaemonState
from tests.transcripts.all_reduce import all_reduce
from tests.transcripts.fabric import MS, StillFabric
from tests.transcripts.samples import samples
from tests.transcripts.transcript import Transcript

__all__ = ["SCENES"]

THERE_MS = 45.0
"""When both workers have the model; what comes before is shown in the scene ``asynchronous``."""
SLOW = {"aggregators": 1, "workers": 3, "server_share": 0.2}
FOLLOWED = {"replicas": 1, "div_max_updates": 1}
SERVERS_KEEP = FaultRates(server_hz=1.0)
JOBS_END = FaultRates(job_hz=1.0)
"""With such rates servers write checkpoints, and models end with their jobs; nothing goes wrong by itself."""


def asynchronous(transcript: Transcript) -> None:
    """Two workers make two updates each."""
    StillFabric(transcript, calm_updates=2).show(0).play()


def synchronous(transcript: Transcript) -> None:
    """Two workers make an iteration, then leave."""
    still = StillFabric(transcript, method=Method.SYNCHRONOUS, calm_updates=1)
    still.show(THERE_MS, SchedulerState, ServerState).play()


def stale_synchronous(transcript: Transcript) -> None:
    """The faster of two workers is not answered before the slower one has come as far."""
    still = StillFabric(transcript, method=Method.STALE_SYNCHRONOUS, calm_updates=2, compute_ns=500 * MS)
    still.show(THERE_MS, SchedulerState).play()


def deadline(transcript: Transcript) -> None:
    """With a delay bound of 0 only one of two updates from the same version is applied."""
    still = StillFabric(transcript, tau_max=0, calm_updates=1)
    still.show(THERE_MS, SchedulerState, DaemonState).play()


def link_slows(transcript: Transcript) -> None:
    """The link of a worker that sends gets slow; the other's update, which was to follow, waits for its bytes."""
    still = StillFabric(transcript, calm_updates=1)
    still.at(56, "worker-0 can send at 50 Mbit/s only", partial(_slow_down, still, "host of worker-0", 50_000_000))
    still.show(THERE_MS, SchedulerState, ServerState).play()


def _slow_down(still: StillFabric, host: str, bps: int) -> None:
    still.fabric.flows.set_rate(up_link(host), bps)
    event = LinksReported(monitor="monitor", rates=(LinkRate(host=host, up=True, bps=bps, age_ns=0),))
    still.fabric.scheduler.take_in(event)


def sums(transcript: Transcript) -> None:
    """The server's link is slow: two updates are summed on their way, and the model is handed on."""
    still = StillFabric(transcript, calm_updates=1, **SLOW)
    still.show(110, SchedulerState, AggregatorState).play()


def aggregator_dies(transcript: Transcript) -> None:
    """It dies in the middle of a sum, whose updates then go by themselves."""
    still = StillFabric(transcript, calm_updates=1, **SLOW)
    still.at(190, "the aggregator dies", still.fabric.aggregators[0].die)
    still.show(160, SchedulerState, ServerState).play()


def replica(transcript: Transcript) -> None:
    """A replica is seeded, and follows at most one update behind."""
    still = StillFabric(transcript, calm_updates=1, **FOLLOWED)
    still.show(20, SchedulerState, ServerState, ReplicaState).play()


def promotion(transcript: Transcript) -> None:
    """The server dies, and its replica takes its place."""
    still = StillFabric(transcript, calm_updates=2, silence_ns=50 * MS, **FOLLOWED)
    still.at(95, "the server dies", still.fabric.servers["server-0"].die)
    still.show(95, SchedulerState, ReplicaState, DaemonState).play()


def server_resumes(transcript: Transcript) -> None:
    """The server dies and goes on from its newest checkpoint; what was computed from later versions is dropped."""
    still = StillFabric(transcript, calm_updates=4, faults=SERVERS_KEEP)
    server = still.fabric.servers["server-0"]
    still.at(170, "the server dies", server.die)
    still.at(190, "it goes on from its checkpoint", partial(_resume, still, server))
    still.show(160, SchedulerState, ServerState).play()


def _resume(still: StillFabric, server: SimulatedServer) -> None:
    for name, checkpoint in server.checkpoints.items():
        still.fabric.witness.resumes(name, checkpoint.holds.version.number)
    still.fabric.resumed(server, server.checkpoints.values()).session.join()


def scheduler_restarts(transcript: Transcript) -> None:
    """A scheduler with nothing in its memory hears from everybody; an update is on its way meanwhile."""
    still = StillFabric(transcript, calm_updates=2)
    still.at(65.5, "the scheduler dies, and comes back after a while", still.fabric.scheduler.restart)
    still.show(60).play()


def worker_dies(transcript: Transcript) -> None:
    """A worker dies while it sends; its next process goes on, and the other worker waits for nobody."""
    still = StillFabric(transcript, calm_updates=1)
    former = still.fabric.workers[0]
    new = still.fabric.worker(0, 2, replace(former.job, resume=Resume.GO_ON))
    still.at(60, "worker-0 dies", former.die)
    still.at(80, "it is started again", new.start)
    still.show(THERE_MS, SchedulerState, ServerState).play()


def several_servers(transcript: Transcript) -> None:
    """Each of two servers holds half of the model; one update is applied by both or by none."""
    still = StillFabric(transcript, workers=1, servers=2, shards=2, calm_updates=1)
    still.show(THERE_MS).play()


def jobs(transcript: Transcript) -> None:
    """A job ends, and its model with it; another job begins with weights of its own."""
    still = StillFabric(transcript, workers=1, calm_updates=1, faults=JOBS_END)
    former = still.fabric.workers[0]
    new = still.fabric.worker(0, 2, JobClaim(job="job 1", workers=1))
    still.at(150, "worker-0 leaves", partial(former.session.leave, 1))
    still.at(250, "worker-0 of another job starts", new.start)
    still.show(60, SchedulerState, ServerState).play()


SCENES: dict[str, Callable[[Transcript], None]] = {
    scene.__name__: scene
    for scene in (
        asynchronous,
        synchronous,
        stale_synchronous,
        deadline,
        link_slows,
        sums,
        aggregator_dies,
        replica,
        promotion,
        server_resumes,
        scheduler_restarts,
        worker_dies,
        several_servers,
        jobs,
        samples,
        all_reduce,
    )
}
