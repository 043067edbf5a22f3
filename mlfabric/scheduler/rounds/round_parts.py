"""What each worker does in a round of AllReduce, from the trees that it goes through. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from mlfabric.methods.byte_trees import Trees
from mlfabric.protocol import Peer, ReducePart
from mlfabric.scheduler.context import Context

__all__ = ["parts_of"]


def parts_of(
    context: Context, trees: Iterable[Trees], workers: Iterable[str], late: Collection[str]
) -> dict[str, list[ReducePart]]:
    """Return what each worker does in the trees that it is in; both ends of an edge get its ticket.

    What comes late is added last.

    Args:
        context: gives tickets and addresses.
        late: of the workers those that have not asked yet.
    """
    parts: dict[str, list[ReducePart]] = {worker: [] for worker in workers}
    addresses = {worker: context.address(worker) for worker in parts}
    last, ticket = frozenset(late), context.tickets.next
    for tree in trees:
        in_turn = sorted(tree.parents)
        if last:
            in_turn.sort(key=last.__contains__)
        inputs, parent_of = _edges(in_turn, tree.parents, addresses, tree.sums_bps, ticket, sends=True)
        takers, source_of = _edges(sorted(tree.sources), tree.sources, addresses, tree.results_bps, ticket, sends=False)
        start, end, rate_bps = tree.start, tree.end, tree.rate_bps
        for worker in {tree.root: "", **tree.parents, **tree.sources}:
            parts[worker].append(
                ReducePart(
                    start=start,
                    end=end,
                    inputs=tuple(inputs.get(worker, ())),
                    parent=parent_of.get(worker),
                    source=source_of.get(worker),
                    takers=tuple(takers.get(worker, ())),
                    rate_bps=rate_bps,
                )
            )
    return parts


def _edges(
    in_turn: Iterable[str],
    other_end: Mapping[str, str],
    addresses: Mapping[str, str],
    most_bps: Mapping[str, int],
    ticket: Callable[[], bytes],
    *,
    sends: bool,
) -> tuple[dict[str, list[Peer]], dict[str, Peer]]:
    """Return what is at the other end of each worker's edge, by that, and at its own; the sender holds the rate."""
    there: dict[str, list[Peer]] = {}
    here: dict[str, Peer] = {}
    for worker in in_turn:
        other, shown, held_bps = other_end[worker], ticket(), most_bps.get(worker, 0)
        here[worker] = Peer(other, addresses[other], shown, held_bps if sends else 0)
        there.setdefault(other, []).append(Peer(worker, "", shown, 0 if sends else held_bps))
    return there, here
