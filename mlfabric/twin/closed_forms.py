"""How long an iteration takes in the ways of training that mlfabric is compared with, as formulas.

    ring           E[max compute] + 2 (N - 1) / N  x  size / slowest direction of any link
    server         E[max compute] + N sizes through the server's link each way, or the slowest worker's own link

The ring is the bandwidth-optimal one (Patarasuk and Yuan, 2009: each host sends and receives 2 (N - 1) / N of the
tensor), its steps are in lockstep, so the slowest link sets the pace of all; that is what gloo and DDP do. Stragglers
come in as the mean of the largest of N computations, which is exact. Latency is charged for each step. What protocols,
processors and switches cost is not in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlfabric.errors import UsageError
from mlfabric.twin.cluster import Host
from mlfabric.twin.settings import NetworkSetting

__all__ = [
    "mean_over_weather",
    "ring_all_reduce_s",
    "ring_share",
    "slowest_shares",
    "synchronous_server_s",
]

BITS = 8


def ring_share(hosts: int) -> float:
    """Return how many times the tensor passes over each link in a ring: 2 (N - 1) / N.

    Raises:
        UsageError: there is no host.
    """
    if hosts < 1:
        raise UsageError(f"{hosts} hosts; allowed: 1 or more")
    return 2 * (hosts - 1) / hosts


def ring_all_reduce_s(size_bytes: int, hosts: Sequence[Host], latency_s: float = 0.0) -> float:
    """Return how long a ring all-reduce of a tensor takes (Patarasuk and Yuan, 2009).

    Args:
        size_bytes: of the tensor, >= 0.
        hosts: with their links, at least one.
        latency_s: of each of the 2 (N - 1) steps.
    """
    share = ring_share(len(hosts))
    return share * size_bytes * BITS / min(host.slowest_bps for host in hosts) + 2 * (len(hosts) - 1) * latency_s


def synchronous_server_s(size_bytes: int, hosts: Sequence[Host], server: Host, latency_s: float = 0.0) -> float:
    """Return how long a plain synchronous parameter server takes to collect all updates and to give all models out.

    Args:
        size_bytes: of model and update, >= 0.
        hosts: of the workers, at least one.
        server: whose link all share evenly.
        latency_s: of each way.
    """
    ring_share(len(hosts))
    bits = size_bytes * BITS
    collect_s = max(len(hosts) * bits / server.down_bps, *(bits / host.up_bps for host in hosts))
    give_s = max(len(hosts) * bits / server.up_bps, *(bits / host.down_bps for host in hosts))
    return collect_s + give_s + 2 * latency_s


def slowest_shares(setting: NetworkSetting, links: int) -> list[tuple[float, float]]:
    """Return how slow the slowest of so many link directions is: pairs of share of the full rate and chance.

    Args:
        setting: what each direction is drawn from, independently.
        links: how many directions there are, >= 1; of N hosts 2 N.
    """
    out, faster = [], 1.0
    for share, chance in sorted(zip(setting.shares, setting.chances, strict=True)):
        rest = max(0.0, faster - chance)
        if (slowest := faster**links - rest**links) > 0:
            out.append((share, slowest))
        faster = rest
    return out


def mean_over_weather(compute_s: float, wire_s: float, shares: Iterable[tuple[float, float]]) -> float:
    """Return the mean time of an iteration whose transfers go at the pace of the slowest link.

    Iterations are counted over time, so periods with a fast network weigh more: a harmonic mean.

    Args:
        compute_s: mean of the longest computation.
        wire_s: of its transfers at the full rate.
        shares: pairs of the slowest link's share and how much of the time it has that.
    """
    return 1 / sum(chance / (compute_s + wire_s / share) for share, chance in shares)
