"""How a plan's values are written for people: workers' names, milliseconds from now, megabytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mlfabric.network import CORE, LinkId
from mlfabric.planning.plan import Plan
from mlfabric.protocol import GetId, UpdateId

__all__ = ["Names", "joined", "link_text", "size_text", "span_text"]

_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class Names:
    """Names an update by its worker, and by its number too if the plan has several of one worker."""

    def __init__(self, plan: Plan) -> None:
        pending = plan.state.replica.pending if plan.state.replica else ()
        updates = {c.update for c in plan.batch.updates} | {p.update for p in pending}
        self._updates = Counter(u.worker for u in updates)
        self._gets = Counter(g.get.worker for g in plan.batch.gets)

    def of(self, what: UpdateId | GetId) -> str:
        """Return one name."""
        counts = self._updates if isinstance(what, UpdateId) else self._gets
        return what.worker if counts[what.worker] < 2 else str(what)

    def all(self, updates: Iterable[UpdateId | GetId], most: int = 5) -> str:
        """Return names in a row, the first ones if there are many."""
        return joined([self.of(u) for u in updates], most)


def link_text(link: LinkId) -> str:
    """Return what people call a link, as "host-2's way up"."""
    if link.head == CORE:
        return f"{link.tail}'s way up"
    return f"{link.head}'s way down" if link.tail == CORE else f"the link from {link.tail} to {link.head}"


def joined(names: Sequence[str], most: int = 5) -> str:
    """Return "a, b and c", or "a, b, c and 7 more"."""
    shown = list(names) if len(names) <= most + 1 else [*names[:most], f"{len(names) - most} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def span_text(span_ns: int) -> str:
    """Return a span of time with a unit that fits, as 12.5 ms."""
    for unit, name in _UNITS:
        if abs(span_ns) >= unit:
            return f"{span_ns / unit:.1f} {name}"
    return "0 ms"


def size_text(size_bytes: int) -> str:
    """Return a size with a unit that fits, as 2.5 MB."""
    for unit, name in _SIZES:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} B"
