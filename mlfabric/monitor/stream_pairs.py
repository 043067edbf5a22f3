"""Which two records are of the same stream, one of its sender and one of its receiver. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial

from mlfabric.monitor.link_evidence import Transfer

__all__ = ["Streams"]

KEEP_PER_PAIR = 16

_Waiting = defaultdict[tuple[str, str], deque[Transfer]]


class Streams:
    """Records that the other end's may still follow."""

    def __init__(self) -> None:
        self._sent: _Waiting = defaultdict(partial(deque, maxlen=KEEP_PER_PAIR))
        self._received: _Waiting = defaultdict(partial(deque, maxlen=KEEP_PER_PAIR))

    def sent(self, transfer: Transfer) -> Transfer | None:
        """Take in a sender's record; return its receiver's if that has come before."""
        return _match(self._received, self._sent, transfer)

    def received(self, transfer: Transfer) -> bool:
        """Take in a receiver's record; tell whether its sender's has come before."""
        return _match(self._sent, self._received, transfer) is not None


def _match(among: _Waiting, else_into: _Waiting, transfer: Transfer) -> Transfer | None:
    pair = transfer.from_host, transfer.to_host
    found = next((other for other in among[pair] if other.is_same(transfer)), None)
    if found is None:
        else_into[pair].append(transfer)
    else:
        among[pair].remove(found)
    return found
