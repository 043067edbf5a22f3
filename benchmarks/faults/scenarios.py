"""What is done to a fabric: each scenario says of what the fabric consists, what befalls it, and who has to go on.

A scenario of a new kind is a class with a plan, a ``strike``, and, where what it did can be undone, a ``heal``.
"""

from __future__ import annotations

import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.faults.cluster import (
    SCHEDULER,
    SERVER,
    Cluster,
    ClusterPlan,
    aggregator_name,
    host_of,
    replica_name,
    worker_name,
)
from benchmarks.faults.ledger import Ledger
from benchmarks.testbed.hosts import Testbed
from mlfabric.model.specs import Method
from mlfabric.twin.settings import Direction

__all__ = ["SCENARIOS", "Scenario", "Strike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What was done.

    Args:
        at_ns: when.
        survivors: workers that have to go on.
        back: workers that have to be there again once it is undone.
        outage_s: how long nobody started somebody again without whom nobody can go on; >= 0.
    """

    at_ns: int
    survivors: Sequence[str]
    back: Sequence[str] = ()
    outage_s: float = 0.0


class Scenario(ABC):
    """One kind of fault.

    Attributes:
        what: it is, in a few words.
        plan: of what the fabric consists.
        limit_s: how long survivors may be without a commit after the fault, beside its outage.
        hosts: names of the hosts that have to be network namespaces; empty if this computer does.
    """

    what: str = ""
    plan = ClusterPlan()
    limit_s = 1.0
    hosts: Sequence[str] = ()

    def prepare(self, cluster: Cluster) -> None:
        """Wait for what has to be going on when it strikes."""
        cluster.check()

    @abstractmethod
    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Do it.

        Args:
            bed: the hosts, if there are any.
            draw: for what is to differ between trials.
        """

    def heal(self, cluster: Cluster, bed: Testbed | None, strike: Strike) -> None:
        """Undo it, if that can be done."""
        cluster.check()


def _now_and_killed(cluster: Cluster, *names: str) -> int:
    """Kill processes; return when."""
    at_ns = time.monotonic_ns()
    cluster.kill(*names)
    return at_ns


def _others(cluster: Cluster, *victims: str) -> list[str]:
    return [name for name in cluster.trainers if name not in victims]


class WorkerKilled(Scenario):
    """SIGKILL of one of three workers."""

    what = "SIGKILL of a worker of 3"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill a worker, whatever it is doing."""
        victim = worker_name(draw.randrange(self.plan.workers))
        survivors = _others(cluster, victim)
        cluster.expect_commits(survivors)
        return Strike(at_ns=_now_and_killed(cluster, victim), survivors=survivors)


class SynchronousWorkerKilled(WorkerKilled):
    """The same in synchronous training, where the others wait for it."""

    what = "SIGKILL of a worker of 3, synchronous"
    plan = ClusterPlan(method=Method.SYNCHRONOUS, ledger=Ledger(writers=32, slots=400, is_mean=True))


class SchedulerKilled(Scenario):
    """SIGKILL of the scheduler, which is started again.

    Args:
        after_s: after so long.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self.what = f"SIGKILL of the scheduler, started again after {after_s:g} s"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill it, and start it again."""
        survivors = _others(cluster)
        cluster.expect_commits(survivors)
        at_ns = _now_and_killed(cluster, SCHEDULER)
        time.sleep(self._after_s)
        cluster.start_scheduler()
        return Strike(at_ns=at_ns, survivors=survivors, outage_s=self._after_s)


class ServerKilled(Scenario):
    """SIGKILL of the only server, which goes on from its checkpoint."""

    what = "SIGKILL of the server, resumed from a checkpoint"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill it, and start it again."""
        at_ns = _now_and_killed(cluster, SERVER)
        cluster.start_server(again=True)
        return Strike(at_ns=at_ns, survivors=_others(cluster))


class ServerReplaced(Scenario):
    """SIGKILL of the server, whose place its replica takes.

    Args:
        updates: how many commits the replica may be behind.
    """

    def __init__(self, updates: int) -> None:
        self.plan = ClusterPlan(replica_updates=updates)
        self.what = f"SIGKILL of the server, its replica within {updates} updates"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill it."""
        return Strike(at_ns=_now_and_killed(cluster, SERVER), survivors=_others(cluster))


class ServerReplacedTwice(ServerReplaced):
    """The same, and then of the server that was its replica, whose place the next one takes."""

    def __init__(self, updates: int) -> None:
        super().__init__(updates)
        self.what = "the same once more, with the next replica"

    def prepare(self, cluster: Cluster) -> None:
        """Let it happen for the first time."""
        cluster.kill(SERVER)
        since_ns = time.monotonic_ns()
        cluster.wait(lambda: all(cluster.commits(w, since_ns) for w in cluster.trainers), "commits of all workers")
        cluster.start_replica()
        cluster.wait_until_followed()

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill the server that was a replica."""
        return Strike(at_ns=_now_and_killed(cluster, replica_name(0)), survivors=_others(cluster))


class ServerStopped(ServerReplaced):
    """SIGSTOP of the server, whose place its replica takes; SIGCONT later, when it is refused and ends."""

    def __init__(self, updates: int) -> None:
        super().__init__(updates)
        self.what = "SIGSTOP of the server, replaced, SIGCONT"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Stop it."""
        at_ns = time.monotonic_ns()
        cluster.signal(SERVER, signal.SIGSTOP)
        return Strike(at_ns=at_ns, survivors=_others(cluster))

    def heal(self, cluster: Cluster, bed: Testbed | None, strike: Strike) -> None:
        """Let it go on, and end."""
        cluster.signal(SERVER, signal.SIGCONT)
        cluster.wait(lambda: not cluster.runs(SERVER), "the server that was replaced ends")
        cluster.kill(SERVER)


class ServerAndSchedulerKilled(ServerReplaced):
    """SIGKILL of the server and of the scheduler, which is started again at once."""

    def __init__(self, updates: int) -> None:
        super().__init__(updates)
        self.what = "SIGKILL of server and scheduler, replaced"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill both, and start the scheduler again."""
        at_ns = _now_and_killed(cluster, SERVER, SCHEDULER)
        cluster.start_scheduler()
        return Strike(at_ns=at_ns, survivors=_others(cluster))


SUMMING = ClusterPlan(workers=4, aggregators=2, worker_rate="40M", server_rate="20M", step_s=0.01)
"""A fabric in which the server's link is the narrow place, so that most updates travel in sums."""


class AggregatorKilled(Scenario):
    """SIGKILL of an aggregator while sums are on their way."""

    what = "SIGKILL of an aggregator mid-sum"
    plan = SUMMING

    def prepare(self, cluster: Cluster) -> None:
        """Wait until sums are made."""
        cluster.wait(lambda: cluster.longest_group() > 1, "a sum of several updates")

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill one of them."""
        survivors = _others(cluster)
        cluster.expect_commits(survivors)
        victim = aggregator_name(draw.randrange(self.plan.aggregators))
        return Strike(at_ns=_now_and_killed(cluster, victim), survivors=survivors)


class HostKilled(AggregatorKilled):
    """SIGKILL of everything that runs on a host: a worker and the aggregator beside it."""

    what = "SIGKILL of all processes of a host"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Kill them."""
        number = draw.randrange(self.plan.aggregators)
        survivors = _others(cluster, worker_name(number))
        cluster.expect_commits(survivors)
        victims = cluster.processes_of(host_of(number))
        return Strike(at_ns=_now_and_killed(cluster, *victims), survivors=survivors)


class Churn(Scenario):
    """Workers that join, leave and are killed at any time."""

    what = "workers join, leave and are killed"
    changes = 8

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Change who is there, again and again."""
        steady, *passing = list(cluster.trainers)
        cluster.expect_commits([steady])
        at_ns = time.monotonic_ns()
        for _ in range(self.changes):
            if len(passing) > 1 and draw.random() < 0.5:
                victim = passing.pop(draw.randrange(len(passing)))
                cluster.tell_to_leave(victim) if draw.random() < 0.5 else cluster.kill(victim)
            else:
                passing.append(cluster.start_worker())
            time.sleep(draw.uniform(0.05, 0.3))
        return Strike(at_ns=at_ns, survivors=[steady, *passing])


class LinkSlowed(Scenario):
    """A worker's link that falls to a hundredth of its rate."""

    what = "a worker's link down to 1 %"
    plan = ClusterPlan(worker_rate="")
    link_bps = 100_000_000
    hosts = (SCHEDULER, SERVER, *(host_of(i) for i in range(3)))

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Slow it down, both ways."""
        assert bed is not None, "it has hosts"
        number = draw.randrange(self.plan.workers)
        victim, survivors = worker_name(number), _others(cluster, worker_name(number))
        cluster.expect_commits(survivors)
        at_ns = time.monotonic_ns()
        _set(bed, host_of(number), bed.link_bps // 100)
        return Strike(at_ns=at_ns, survivors=survivors, back=[victim])

    def heal(self, cluster: Cluster, bed: Testbed | None, strike: Strike) -> None:
        """Let all links have their full rates."""
        assert bed is not None, "it has hosts"
        for host in bed.hosts:
            _set(bed, host.name, bed.link_bps)


class HostCutOff(LinkSlowed):
    """A worker's host whose packets vanish, both ways: no connection is ever reset."""

    what = "silent death of a worker's host, mended"
    directions: Sequence[Direction] = tuple(Direction)

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Cut it off."""
        assert bed is not None, "it has hosts"
        number = draw.randrange(self.plan.workers)
        victim, survivors = worker_name(number), _others(cluster, worker_name(number))
        cluster.expect_commits(survivors)
        at_ns = time.monotonic_ns()
        bed.cut(host_of(number), *self.directions)
        return Strike(at_ns=at_ns, survivors=survivors, back=[victim])

    def heal(self, cluster: Cluster, bed: Testbed | None, strike: Strike) -> None:
        """Let all packets pass."""
        assert bed is not None, "it has hosts"
        for host in bed.hosts:
            bed.mend(host.name)


class OneWayPartition(HostCutOff):
    """The same one way only: what is sent to the host arrives, and nothing of what it sends."""

    what = "a worker's host that is heard no more, mended"
    directions = (Direction.UP,)


def _set(bed: Testbed, host: str, bps: int) -> None:
    bed.set_rates({(host, direction): bps for direction in Direction})


class WorkerStopped(Scenario):
    """SIGSTOP of one of three workers, SIGCONT later."""

    what = "SIGSTOP of a worker of 3, SIGCONT"

    def strike(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> Strike:
        """Stop a worker, whatever it is doing."""
        victim = worker_name(draw.randrange(self.plan.workers))
        survivors = _others(cluster, victim)
        cluster.expect_commits(survivors)
        at_ns = time.monotonic_ns()
        cluster.signal(victim, signal.SIGSTOP)
        return Strike(at_ns=at_ns, survivors=survivors, back=[victim])

    def heal(self, cluster: Cluster, bed: Testbed | None, strike: Strike) -> None:
        """Let it go on."""
        for name in strike.back:
            cluster.signal(name, signal.SIGCONT)


SCENARIOS: dict[str, Scenario] = {
    "worker_killed": WorkerKilled(),
    "worker_killed_synchronous": SynchronousWorkerKilled(),
    "scheduler_back_at_once": SchedulerKilled(0.0),
    "scheduler_back_after_1s": SchedulerKilled(1.0),
    "scheduler_back_after_5s": SchedulerKilled(5.0),
    "server_resumed": ServerKilled(),
    "server_replaced": ServerReplaced(8),
    "server_replaced_strict": ServerReplaced(0),
    "server_replaced_twice": ServerReplacedTwice(8),
    "server_stopped": ServerStopped(8),
    "server_and_scheduler_killed": ServerAndSchedulerKilled(8),
    "aggregator_killed": AggregatorKilled(),
    "host_killed": HostKilled(),
    "churn": Churn(),
    "link_at_1_percent": LinkSlowed(),
    "worker_stopped": WorkerStopped(),
    "host_cut_off": HostCutOff(),
    "one_way_partition": OneWayPartition(),
}
"""All of them, by the names in results."""
