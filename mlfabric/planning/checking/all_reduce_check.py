"""AllReduce: every worker gets the sum of all; there is no server (paper, section 6)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from mlfabric.planning.checking.view import View, listed
from mlfabric.planning.plan import Kind
from mlfabric.protocol import UpdateId

__all__ = ["check_results"]

_RESULTS = (Kind.MODEL, Kind.RING)


def check_results(view: View) -> None:
    """Assert that each update's worker has the sum of all when its commit says so, and that a ring is one."""
    order = [c.update for c in view.plan.commits]
    assert order == sorted(order), f"the results are not in the order of ids: {listed(order)}"
    everything = frozenset(order)
    for commit in view.plan.commits:
        at_ns = _complete_at(view, view.sources[commit.update], everything)
        name = f"the worker of {commit.update}"
        assert at_ns is not None, f"{name} never has the sum of all {len(everything)}"
        assert commit.arrive_ns == at_ns, f"{name} has the sum at {at_ns}, its commit says {commit.arrive_ns}"
        in_time = commit.commit_ns >= commit.arrive_ns
        assert in_time, f"{commit.update} is committed at {commit.commit_ns}, it arrives at {commit.arrive_ns}"
    _check_ring(view)
    _check_stripes(view)


def _check_stripes(view: View) -> None:
    """Assert that stripes cover the tensor, and that a host sums in at most one of them, and relays in at most one."""
    stripes = view.plan.stripe_bytes
    if not stripes:
        return
    sizes = {view.sizes[c.update] for c in view.plan.commits}
    assert sizes == {sum(stripes)}, f"stripes of {listed(stripes)} bytes for tensors of {listed(sorted(sizes))}"
    passing = {(t.source, t.kind is Kind.MODEL, t.stripe) for t in view.transfers if t.inputs}
    twice = [host for (host, _), count in Counter(key[:2] for key in passing).items() if count > 1]
    assert not twice, f"{listed(twice)} pass on in more than one stripe each way"


def _complete_at(view: View, host: str, everything: frozenset[UpdateId]) -> int | None:
    """Return when a host has the whole sum, received or completed with its own; None for never."""
    ends = [_stripe_complete_at(view, host, everything, k) for k in range(max(1, len(view.plan.stripe_bytes)))]
    known = [end_ns for end_ns in ends if end_ns is not None]
    return max(known) if len(known) == len(ends) else None


def _stripe_complete_at(view: View, host: str, everything: frozenset[UpdateId], stripe: int) -> int | None:
    arriving = [t for t in view.transfers if t.destination == host and t.stripe == stripe]
    whole = [t.arrive_ns for t in arriving if t.kind in _RESULTS and everything.issubset(t.members)]
    if whole:
        return min(whole)
    own = {u for u in everything if view.sources[u] == host}
    parts = [t for t in arriving if t.kind not in _RESULTS]
    if own.union(*(t.members for t in parts)) != everything:
        return None
    ready_ns = [view.candidates[u].ready_ns for u in own]
    return max([view.state.now_ns, *ready_ns, *(t.arrive_ns for t in parts)])


def _check_ring(view: View) -> None:
    """Assert that the edges of a ring are one circle through all workers' hosts, and run at the same rate."""
    ring = [t for t in view.transfers if t.kind is Kind.RING]
    if not ring:
        return
    following = {t.source: t.destination for t in ring}
    hosts = {view.sources[c.update] for c in view.plan.commits}
    reached, host = [ring[0].source], ring[0].destination
    while host in following and host not in reached:
        reached.append(host)
        host = following[host]
    circle = len(following) == len(ring) == len(reached) and host == reached[0]
    assert circle, f"the ring's edges are not one circle: {listed(f'{t.source} to {t.destination}' for t in ring)}"
    assert set(reached) == hosts, f"the ring goes through {listed(reached)}, the workers are at {listed(sorted(hosts))}"
    start_ns = ring[0].profile.start_ns
    ready_ns = max(view.candidates[c.update].ready_ns for c in view.plan.commits)
    assert start_ns >= ready_ns, f"the ring starts at {start_ns}, the last of its updates is ready at {ready_ns}"
    for one, two in pairwise(ring):
        in_step = one.profile == two.profile and one.size_bytes == two.size_bytes
        assert in_step, f"the ring's edges from {one.source} and {two.source} are not in step"
    least = -(-2 * (len(ring) - 1) * max(view.sizes[c.update] for c in view.plan.commits) // len(ring))
    size = ring[0].size_bytes
    assert size >= least, f"each edge of the ring carries {size} bytes, a sum of all takes {least}"
