"""When a round of AllReduce may begin though some have not asked yet. Pure.

Most workers of a synchronous job ask at about the same time after the last round; who has not by then is late, and
often by much. What all others give can be summed meanwhile, so that only the late one's own way is left when it comes.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["Rhythm"]

_EARLY_SHARE = 2 / 3
_GRACE_SHARE = 0.1


class Rhythm:
    """How long after the last round workers ask for the next one.

    ``pause_ns`` is how long no worker had asked between the last round and the one before; None if there were none.
    """

    def __init__(self) -> None:
        self.pause_ns: int | None = None
        self._settled_ns: int | None = None
        self._asked_ns: dict[str, int] = {}

    def settled(self, now_ns: int) -> None:
        """Note that a round is over."""
        if self._settled_ns is not None and self._asked_ns:
            self.pause_ns = max(0, min(self._asked_ns.values()) - self._settled_ns)
        self._settled_ns = now_ns
        self._asked_ns = {}

    def asked(self, worker: str, now_ns: int) -> None:
        """Note that a worker asks for the next round; only the first time counts."""
        self._asked_ns.setdefault(worker, now_ns)

    def forget(self, worker: str) -> None:
        """Not count what a worker has asked for: it is gone, or was told that this failed."""
        self._asked_ns.pop(worker, None)

    def early_ns(self, workers: Collection[str]) -> int | None:
        """Return from when on the others need not be waited for; None while too many are missing, and at first.

        Two thirds must be there, and a tenth more time must have passed than half of them took.

        Args:
            workers: who is to take part; others that have asked are gone.
        """
        asked_ns = sorted(self._asked_ns[worker] for worker in workers if worker in self._asked_ns)
        if self._settled_ns is None or len(asked_ns) < max(2, _EARLY_SHARE * len(workers)):
            return None
        half_ns = asked_ns[len(workers) // 2]
        return half_ns + round(_GRACE_SHARE * (half_ns - self._settled_ns))
