"""Each transfer by itself, and all of them on each link.

Amounts are exact: a rate times a span is counted in bit ns, 10**9 of which are a bit.
"""

from __future__ import annotations

from itertools import pairwise

from mlfabric.network import LinkId, Network, Piece, Profile
from mlfabric.network.timeline import Timeline
from mlfabric.planning.checking.view import View
from mlfabric.planning.plan import Kind, Transfer

__all__ = ["BIT_NS_PER_BYTE", "check_capacity", "check_transfers"]

BIT_NS_PER_BYTE = 8 * 10**9


def check_transfers(view: View, network: Network) -> None:
    """Assert that each transfer takes the network's path, carries exactly its bytes, and is in time."""
    rounds = _ring_rounds(view, network)
    for i, transfer in enumerate(view.transfers):
        name, profile = view.name(i), transfer.profile
        path = network.path(transfer.source, transfer.destination)
        assert transfer.path == path, f"{name} takes {transfer.path}, the network's path is {path}"
        if not transfer.planned:
            _check_in_flight(view, name, transfer)
        else:
            earliest = max(transfer.ready_ns, view.state.now_ns)
            assert profile.start_ns >= earliest, f"{name} starts at {profile.start_ns}, ready at {earliest}"
            _check_pieces(name, profile)
            _check_amount(name, transfer)
        delay = rounds if transfer.kind is Kind.RING else network.latency_ns(path)
        arrive = profile.end_ns + delay
        assert transfer.arrive_ns == arrive, f"{name} arrives at {transfer.arrive_ns}, end and latency make it {arrive}"


def _ring_rounds(view: View, network: Network) -> int:
    """The latency of a ring: one hop's, the longest, for each of its 2 (N - 1) rounds."""
    ring = [t for t in view.transfers if t.kind is Kind.RING]
    return 2 * max(0, len(ring) - 1) * max((network.latency_ns(t.path) for t in ring), default=0)


def _check_in_flight(view: View, name: str, transfer: Transfer) -> None:
    known = [view.candidates[u].in_flight for u in transfer.members if u in view.candidates]
    assert transfer.profile in known, f"{name} counts as on its way before, but no update of it is in flight like that"


def _check_pieces(name: str, profile: Profile) -> None:
    """Assert that a profile is well-formed: ascending, above zero, merged, and from its start to its end."""
    pieces = profile.pieces
    for piece in pieces:
        assert piece.start_ns < piece.end_ns, f"{name} has a piece of no length: {piece}"
        assert piece.bps > 0, f"{name} has a piece without a rate: {piece}"
    for one, two in pairwise(pieces):
        assert one.end_ns <= two.start_ns, f"{name} has pieces that overlap: {one}, {two}"
        apart = one.end_ns < two.start_ns or one.bps != two.bps
        assert apart, f"{name} has pieces that should be one: {one}, {two}"
    spans = (pieces[0].start_ns, pieces[-1].end_ns) if pieces else (profile.start_ns, profile.start_ns)
    given = (profile.start_ns, profile.end_ns)
    assert given == spans, f"{name} lasts from {given[0]} to {given[1]}, its pieces from {spans[0]} to {spans[1]}"


def _check_amount(name: str, transfer: Transfer) -> None:
    """Assert that all bytes pass, and that they had not yet passed 1 ns before the end."""
    size, pieces = transfer.size_bytes, transfer.profile.pieces
    assert size >= 0, f"{name} has a size of {size} bytes"
    if not transfer.path or not size:
        assert not pieces, f"{name} needs no link's time, but takes {len(pieces)} pieces of it"
        return
    sent = sum(bps * (end_ns - start_ns) for start_ns, end_ns, bps in pieces)
    needed = size * BIT_NS_PER_BYTE
    carried = f"{name} carries {sent / BIT_NS_PER_BYTE:.6f} bytes"
    assert sent >= needed, f"{carried}, it should be {size}"
    assert sent - pieces[-1].bps < needed, f"{carried}, it should be {size}: it ends too late"


def check_capacity(view: View, network: Network) -> None:
    """Assert that all transfers together never take more of a link than was free of it, at any instant."""
    pieces: dict[LinkId, list[Piece]] = {}
    for transfer in view.transfers:
        if transfer.planned:
            for link in transfer.path:
                pieces.setdefault(link, []).extend(transfer.profile.pieces)
    for link, taken in pieces.items():
        _check_link(view, link, taken, network.free_line(link))


def _check_link(view: View, link: LinkId, taken: list[Piece], free: Timeline) -> None:
    """Sweep over time: what is taken changes at ends of pieces, what is free at the line's own boundaries."""
    changes = [(start_ns, bps) for start_ns, _, bps in taken] + [(end_ns, -bps) for _, end_ns, bps in taken]
    changes += [(at_ns, 0) for at_ns in free.times[1:-1]]
    changes.sort()
    used = line = 0
    for n, (at_ns, bps) in enumerate(changes):
        used += bps
        if n + 1 < len(changes) and changes[n + 1][0] == at_ns:
            continue
        while free.times[line + 1] <= at_ns:
            line += 1
        left = max(0, free.values[line])
        assert used <= left, (
            f"link {link} at {at_ns}: {used} bit/s are taken, {left} are free; by {_crossing(view, link, at_ns)}"
        )


def _crossing(view: View, link: LinkId, at_ns: int) -> str:
    """Name who crosses a link at an instant."""
    return ", ".join(
        view.name(i)
        for i, transfer in enumerate(view.transfers)
        if transfer.planned and link in transfer.path
        and any(start_ns <= at_ns < end_ns for start_ns, end_ns, _ in transfer.profile.pieces)
    )  # fmt: skip
