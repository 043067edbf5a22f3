"""The paper's order of updates to a model that is split over several servers (section 10.2). Pure.

An update has a part for each server, and all its parts have one deadline. If each part went by itself, shortest first,
parts of the model that are small would see more updates than others. So the parts of an update are reserved together,
the one that ends first, first, each over what those before it leave; and ``t_en`` of the update is that of its last
part. With this ``t_en`` the order and the drops are those of algorithm 2, as ``paper.py`` has them for one server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlfabric.network import Draft, Network, Profile
from mlfabric.protocol import UpdateId

__all__ = ["SentParts", "SplitUpdate", "order_parts"]


class SplitUpdate(NamedTuple):
    """An update whose part for server j has ``part_bytes[j]`` bytes; none starts before ``ready_ns``."""

    update: UpdateId
    source: str
    part_bytes: tuple[int, ...]
    ready_ns: int
    computed_from: int


class SentParts(NamedTuple):
    """An update, when it ends, the profiles of its parts by server, and what is free when they are reserved."""

    end_ns: int
    update: SplitUpdate
    profiles: tuple[Profile, ...]
    after: Draft


def order_parts(
    updates: Iterable[SplitUpdate], network: Network, servers: Sequence[str], *, v_init: int, tau_max: int
) -> list[SentParts]:
    """Return the updates that are sent, by position from 1; ``network`` is not changed.

    ``servers`` are hosts, one for each part; the update at position 1 is applied to version ``v_init``. Ties: the
    earlier deadline, then (worker, id).
    """
    due = {u: u.computed_from + tau_max - v_init + 1 for u in updates}
    waiting, placed, free = sorted(due, key=lambda u: (due[u], u.update)), list[SentParts](), network.draft()

    def first(position: int, over: Draft) -> SentParts | None:
        for pool in ([u for u in waiting if due[u] == position], waiting):
            if reachable := [p for u in pool if (p := _together(u, network, servers, over.fork()))]:
                return min(reachable, key=lambda p: p.end_ns)
        return None

    for position in range(1, len(waiting) + 1):
        waiting = [u for u in waiting if due[u] > len(placed)]
        chosen = first(position, free)
        if chosen is None:
            break
        waiting.remove(chosen.update)
        following = first(position + 1, chosen.after) if due[chosen.update] == position else None
        if following is None or chosen.end_ns <= following.end_ns:
            placed.append(chosen)
            free = chosen.after
    return placed


def _together(update: SplitUpdate, network: Network, servers: Sequence[str], free: Draft) -> SentParts | None:
    """Reserve all parts of an update; None if one of them cannot be sent before the horizon."""
    sizes = zip(servers, update.part_bytes, strict=True)
    parts = {j: (network.path(update.source, to), size, update.ready_ns) for j, (to, size) in enumerate(sizes)}
    found = dict[int, Profile]()
    while parts:
        planned = [(p.end_ns, j, p) for j, part in parts.items() if (p := free.transfer(*part))]
        if not planned:
            return None
        _, j, found[j] = min(planned)
        free.reserve(parts.pop(j)[0], found[j])
    return SentParts(max(p.end_ns for p in found.values()), update, tuple(p for _, p in sorted(found.items())), free)
