"""Partitions: which hosts cannot reach which others for a while, in one direction or in both. Pure.

What is said across a cut is held (TCP sends it again until it arrives), unless the line breaks first. Bytes stall if
either direction is cut, for without acknowledgements nothing more is sent.
"""

from __future__ import annotations

__all__ = ["Cuts"]


class Cuts(dict[tuple[str, str], int]):
    """Every direction that is cut, and until when; nearly always empty."""

    def cut(self, source: str, destination: str, until_ns: int) -> None:
        """Let nothing arrive in one direction until then, or longer if it is cut for longer already."""
        way = (source, destination)
        self[way] = max(until_ns, self.get(way, 0))

    def held_ns(self, source: str, destination: str, at_ns: int) -> int:
        """Return for how long what is said at ``at_ns`` is held; 0 if nothing is in its way."""
        return max(0, self.get((source, destination), 0) - at_ns)

    def stalls(self, source: str, destination: str, at_ns: int) -> bool:
        """Tell whether bytes between two hosts do not move."""
        there, back = self.held_ns(source, destination, at_ns), self.held_ns(destination, source, at_ns)
        return there > 0 or back > 0

    def forget(self, at_ns: int) -> None:
        """Forget what is over."""
        for way in [way for way, until_ns in self.items() if until_ns <= at_ns]:
            del self[way]
