"""What each worker does in a round of AllReduce, from the trees that it goes through. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mlfabric.methods.byte_trees import Trees
from mlfabric.protocol import Peer, ReducePart
from mlfabric.scheduler.context import Context

__all__ = ["parts_of"]


def parts_of(
    context: Context, trees: Iterable[Trees], workers: Iterable[str], late: Collection[str]
) -> dict[str, list[ReducePart]]:
    """Return what each worker does; both ends of an edge get its ticket. What comes late is added last.

    Args:
        context: gives tickets and addresses.
        late: of the workers those that have not asked yet.
    """
    parts: dict[str, list[ReducePart]] = {worker: [] for worker in workers}
    last = frozenset(late)
    for tree in trees:
        in_turn = sorted(tree.parents, key=lambda worker: (worker in last, worker))
        up = {worker: context.tickets.next() for worker in in_turn}
        down = {worker: context.tickets.next() for worker in sorted(tree.sources)}
        inputs, takers = _grouped(in_turn, tree.parents), _grouped(down, tree.sources)
        for worker in parts:
            parts[worker].append(
                ReducePart(
                    start=tree.start,
                    end=tree.end,
                    inputs=tuple(Peer(w, "", up[w]) for w in inputs.get(worker, ())),
                    parent=_peer(context, tree.parents.get(worker), up.get(worker), tree.sums_bps.get(worker, 0)),
                    source=_peer(context, tree.sources.get(worker), down.get(worker)),
                    takers=tuple(Peer(w, "", down[w], tree.results_bps.get(w, 0)) for w in takers.get(worker, ())),
                    rate_bps=tree.rate_bps,
                )
            )
    return parts


def _grouped(workers: Iterable[str], other_end: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the workers, in their order, by whom each is connected with."""
    groups: dict[str, list[str]] = {}
    for worker in workers:
        groups.setdefault(other_end[worker], []).append(worker)
    return groups


def _peer(context: Context, worker: str | None, ticket: bytes | None, most_bps: int = 0) -> Peer | None:
    if worker is None or ticket is None:
        return None
    return Peer(worker, context.address(worker), ticket, most_bps)
