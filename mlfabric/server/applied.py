"""Which updates were applied or dropped: the memory that makes every update count at most once (design, section 6).

Per worker incarnation a low-water mark and a window above it. What was dropped here is kept beside it, so that an
update that was answered with a drop is not applied when it is offered again; only the applied ones are in checkpoints
and announcements. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mlfabric.protocol import AppliedIds, Committed, Dropped, ModelVersion, UpdateId

__all__ = ["AppliedSet"]


@dataclass(slots=True)
class _Window:
    low: int = 0
    recent: dict[int, tuple[ModelVersion, int]] = field(default_factory=dict)
    dropped: dict[int, Dropped] = field(default_factory=dict)


class AppliedSet:
    """The applied and the dropped updates of all workers.

    Below a worker's low-water mark every update has an outcome that the worker knows, so nobody asks for it again and
    its version need not be kept; an update below it that comes all the same is a duplicate.
    """

    def __init__(self, applied: Iterable[AppliedIds] = ()) -> None:
        self._windows: dict[tuple[str, int], _Window] = {}
        for ids in applied:
            recent = {counter: (version, tau) for counter, version, tau in ids.recent}
            self._windows[ids.worker, ids.incarnation] = _Window(ids.low, recent)

    def add(self, update: UpdateId, version: ModelVersion, tau: int) -> None:
        """Remember that ``update`` made ``version``; a second time is a broken invariant."""
        assert not self.knows(update), f"{update} applied twice"
        self._window(update).recent[update.counter] = (version, tau)

    def drop(self, update: UpdateId, outcome: Dropped) -> None:
        """Remember that ``update`` was dropped, unless it is below the low-water mark."""
        window = self._window(update)
        if update.counter >= window.low:
            window.dropped[update.counter] = outcome

    def knows(self, update: UpdateId) -> bool:
        """Tell whether ``update`` was applied or dropped, or is below the low-water mark."""
        window = self._windows.get(update[:2])
        counter = update.counter
        return window is not None and (counter < window.low or counter in window.recent or counter in window.dropped)

    def outcome(self, update: UpdateId) -> Committed | Dropped | None:
        """Return what became of ``update``, or None if that is open or below the low-water mark."""
        window = self._windows.get(update[:2])
        if window is None:
            return None
        found = window.recent.get(update.counter)
        return Committed(version=found[0], tau=found[1]) if found else window.dropped.get(update.counter)

    def raise_low(self, update: UpdateId, low: int) -> None:
        """Forget the window of ``update``'s worker below ``low``; the mark never falls."""
        window = self._window(update)
        if low > window.low:
            window.recent = {counter: at for counter, at in window.recent.items() if counter >= low}
            window.dropped = {counter: why for counter, why in window.dropped.items() if counter >= low}
            window.low = low

    def snapshot(self) -> tuple[AppliedIds, ...]:
        """Return everything as plain values, for announcements and checkpoints."""
        return tuple(
            AppliedIds(
                worker=worker,
                incarnation=incarnation,
                low=window.low,
                recent=tuple((counter, version, tau) for counter, (version, tau) in sorted(window.recent.items())),
            )
            for (worker, incarnation), window in sorted(self._windows.items())
        )

    def _window(self, update: UpdateId) -> _Window:
        return self._windows.setdefault(update[:2], _Window())
