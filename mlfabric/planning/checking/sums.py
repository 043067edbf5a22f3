"""What transfers contain, that nothing is forwarded before it has arrived, and what a host may sum or relay."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import accumulate

from mlfabric.network import Network
from mlfabric.planning.checking.carriage import BIT_NS_PER_BYTE
from mlfabric.planning.checking.view import View, listed
from mlfabric.planning.plan import Kind, Toward, Transfer
from mlfabric.planning.problem import Aggregator, Consistency
from mlfabric.protocol import UpdateId

__all__ = ["check_relays", "check_sums", "overtaken_at"]


def check_sums(view: View, network: Network) -> None:
    """Assert that each transfer has exactly its inputs' updates and its source's own, and sends nothing too early."""
    chunk = view.config.chunk_bytes * BIT_NS_PER_BYTE
    for i, transfer in enumerate(view.transfers):
        for k in transfer.inputs:
            _check_input(view, i, k)
            given, name = view.transfers[k], f"{view.name(i)} of {view.name(k)}"
            start_ns, arrive_ns = transfer.profile.start_ns, given.arrive_ns
            if transfer.cut_through and transfer.path:
                at_ns = overtaken_at(given, network.latency_ns(given.path), transfer, chunk)
                assert at_ns is None, f"{name}: at {at_ns} it has sent more than has arrived, less a chunk"
            else:
                assert start_ns >= arrive_ns, f"{name}: it starts at {start_ns}, that arrives at {arrive_ns}"
        if transfer.kind is not Kind.RING:
            _check_members(view, i)
        _check_size(view, i)


def _check_input(view: View, i: int, k: int) -> None:
    name = view.name(i)
    assert 0 <= k < i, f"{name} has input {k}; inputs come first"
    given, transfer = view.transfers[k], view.transfers[i]
    assert given.destination == transfer.source, f"{name} has input {view.name(k)}, which does not end at its source"
    same = given.stripe == transfer.stripe
    assert same, f"{name} of stripe {transfer.stripe} has input {view.name(k)} of {given.stripe}"


def overtaken_at(given: Transfer, latency_ns: int, stream: Transfer, chunk: int) -> int | None:
    """Return an instant before the input's arrival at which a stream has sent more than the input brought, or None.

    Until all of the input has arrived, at most the part that has arrived, less one chunk, may have been sent. Both are
    piecewise linear, so it is enough to look at their breakpoints from the stream's start on, where a chunk must be
    there; at the arrival, what holds just before it.

    Args:
        latency_ns: of the input's path.
        chunk: in bit ns.
    """
    arrived, sent = _Curve(given, latency_ns), _Curve(stream, 0)
    start_ns, arrive_ns = stream.profile.start_ns, given.arrive_ns
    if start_ns < arrive_ns:
        for at_ns in sorted({*arrived.times, *sent.times, arrive_ns}):
            there = arrived.at(at_ns) if given.path else 0
            if start_ns <= at_ns <= arrive_ns and sent.at(at_ns) > there - chunk:
                return at_ns
    return None


class _Curve:
    """How much of a transfer has passed by when, in bit ns; never more than its size."""

    def __init__(self, transfer: Transfer, latency_ns: int) -> None:
        self._pieces = [(a + latency_ns, b + latency_ns, bps) for a, b, bps in transfer.profile.pieces]
        self._starts = [start_ns for start_ns, _, _ in self._pieces]
        self._passed = list(accumulate((bps * (b - a) for a, b, bps in self._pieces), initial=0))
        self._total = transfer.size_bytes * BIT_NS_PER_BYTE
        self.times = {t for start_ns, end_ns, _ in self._pieces for t in (start_ns, end_ns)}

    def at(self, at_ns: int) -> int:
        last = bisect_right(self._starts, at_ns) - 1
        if last < 0:
            return 0
        start_ns, end_ns, bps = self._pieces[last]
        return min(self._total, self._passed[last] + bps * (min(at_ns, end_ns) - start_ns))


def _check_members(view: View, i: int) -> None:
    """Assert that members are the inputs' and the source's own, each once; and that its own are ready."""
    name, transfer = view.name(i), view.transfers[i]
    brought = [u for k in transfer.inputs for u in view.transfers[k].members]
    twice = [u for u, count in Counter(brought).items() if count > 1]
    assert not twice, f"{name} gets {listed(twice)} more than once"
    members = set(transfer.members)
    assert len(members) == len(transfer.members), f"{name} names a member twice"
    missing = sorted(set(brought) - members)
    assert not missing, f"{name} leaves out {listed(missing)} of its inputs"
    for update in sorted(members - set(brought)):
        _check_own(view, name, transfer, update)
    if transfer.kind in (Kind.UPDATE, Kind.SUM):
        assert members, f"{name} carries no update"


def _check_own(view: View, name: str, transfer: Transfer, update: UpdateId) -> None:
    """Assert that an update that no input brings is at the source, and is ready when it is sent."""
    assert update in view.sources, f"{name} carries {update}, which is not in the batch and not pending"
    at = view.sources[update]
    assert at == transfer.source, f"{name} carries {update}, which is at {at}, and no input brings it"
    candidate = view.candidates.get(update)
    if candidate is not None and transfer.planned:
        start_ns, ready_ns = transfer.profile.start_ns, candidate.ready_ns
        assert start_ns >= ready_ns, f"{name} starts at {start_ns}, {update} is ready at {ready_ns}"


def _check_size(view: View, i: int) -> None:
    """Assert that a transfer is as large as what it carries."""
    name, transfer = view.name(i), view.transfers[i]
    size = transfer.size_bytes
    if transfer.kind in (Kind.UPDATE, Kind.SUM):
        sizes = [view.bytes_of(u, transfer.stripe) for u in transfer.members]
        wanted = max(sizes) * (view.tensors if len(sizes) > 1 else 1)
        assert size == wanted, f"{name} has {size} bytes, its {len(sizes)} updates make {wanted}"
    elif transfer.kind is Kind.MODEL:
        for k in transfer.inputs:
            brought, kind = view.transfers[k].size_bytes, view.transfers[k].kind
            assert size <= brought or kind is not Kind.MODEL, f"{name} hands on {size} bytes of {brought}"


def check_relays(view: View) -> None:
    """Assert that only aggregators sum and only distributors relay, each one group or model, within its limit."""
    if view.config.consistency is Consistency.ALL_REDUCE:
        return
    _check_made(view, Toward.PRIMARY, view.state.aggregators)
    _check_made(view, Toward.REPLICA, view.state.aggregators)
    _check_handed_on(view)


def _check_handed_on(view: View) -> None:
    """Assert that only distributors relay a model, within their limits; transfers within a host are not counted."""
    most = {d.host: d.most_updates for d in view.state.distributors}
    handing = [t for t in view.transfers if t.toward is Toward.WORKERS and t.inputs]
    for host, count in Counter(t.source for t in handing).items():
        assert host in most, f"{host} hands a model on to {count}, but is no distributor"
    for host, count in Counter(t.source for t in handing if t.path).items():
        assert not most[host] or count <= most[host], (
            f"{host} hands a model on to {count}, it takes {most[host]} at most"
        )


def _check_made(view: View, toward: Toward, aggregators: tuple[Aggregator, ...]) -> None:
    made = [(i, t) for i, t in enumerate(view.transfers) if t.toward is toward and (t.inputs or t.kind is Kind.SUM)]
    most = {a.host: a.most_updates for a in aggregators}
    places = Counter(a.host for a in aggregators)
    for i, transfer in made:
        # What a worker folds for the replica arrives as one item, so there inputs count against the limit.
        host, count = transfer.source, len(transfer.inputs if toward is Toward.REPLICA else transfer.members)
        assert host in most, f"{view.name(i)} is a sum, but {host} is no aggregator for the {toward.value}"
        room = most[host]
        assert not room or count <= room, f"{view.name(i)} is a sum of {count}, {host} takes {room} at most"
    for host, count in Counter(t.source for _, t in made).items():
        assert count <= places[host], f"{host} serves {count} groups toward the {toward.value}"
