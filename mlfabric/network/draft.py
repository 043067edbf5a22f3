"""A copy of a network for planning: residual capacities, copied link by link at the first reservation.

Until then it reads the network's own timelines, so it is cheap to make, and is valid only until that network changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlfabric.network.links import LinkId, Path
from mlfabric.network.profile import Profile, transfer_over
from mlfabric.network.timeline import Timeline

__all__ = ["Draft"]


class Draft:
    """An overlay on the residual capacities of a network; made by ``Network.draft``."""

    __slots__ = ("_base", "_floor_ns", "_own")

    def __init__(self, base: Mapping[LinkId, Timeline], floor_ns: int) -> None:
        self._base = base
        self._own: dict[LinkId, Timeline] = {}
        self._floor_ns = floor_ns

    def transfer(self, path: Path, size_bytes: int, ready_ns: int) -> Profile | None:
        """Plan one transfer over the free capacity; like ``Network.transfer``."""
        own, base = self._own, self._base
        lines = [own[link] if link in own else base[link] for link in path]
        return transfer_over(lines, size_bytes, max(ready_ns, self._floor_ns))

    def reserve(self, path: Path, profile: Profile) -> None:
        """Subtract a profile, as returned by ``transfer``, from the free capacity."""
        for link in path:
            line = self._own.get(link)
            if line is None:
                line = self._own[link] = self._base[link].copy()
            for start_ns, end_ns, bps in profile.pieces:
                line.add(start_ns, end_ns, -bps)

    def fork(self) -> Draft:
        """Return an independent copy of this draft."""
        twin = Draft(self._base, self._floor_ns)
        twin._own = {link: line.copy() for link, line in self._own.items()}
        return twin
