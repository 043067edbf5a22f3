"""Which of the offered transfers may come now. Pure.

One is granted when no running transfer is in conflict with it and no earlier offered one is: the plan says which must
not overlap (``after``), the earlier place in the sequence goes first. What is late to offer therefore never keeps the
others waiting, and a sum that is early, and comes as fast as it is made, does not either; only the commit order waits.
The head of the sequence, which in synchronous training is a whole iteration, may exceed the budget for receive buffers,
so that the sequence can always go on; of a part of a model, the oldest push.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.server.actions import Grant
from mlfabric.server.expected_transfers import Incoming
from mlfabric.server.transfers import IncomingTransfer
from mlfabric.transfer.offers import TransferState
from mlfabric.transfer.precedence import waits_for

__all__ = ["grants"]


def grants(incoming: Incoming, budget_bytes: int) -> Iterator[Grant]:
    """Grant what may come now.

    Args:
        incoming: the transfers; those that are granted run from now on.
        budget_bytes: for receive buffers.
    """
    transfers = incoming.transfers
    running = [t for t in transfers.values() if t.state is TransferState.RECEIVING]
    held_bytes = sum(t.size_bytes for t in transfers.values() if t.holds_buffer)
    waiting: list[IncomingTransfer] = []
    urgent = {t.transfer for t in incoming.urgent()}
    for transfer in (t for place in incoming.places() for t in place):
        if transfer.state is not TransferState.OFFERED:
            continue
        fits = transfer.transfer in urgent or held_bytes + transfer.size_bytes <= budget_bytes
        if not fits or any(waits_for(transfer.transfer, o.transfer, transfers) for o in (*running, *waiting)):
            waiting.append(transfer)
            continue
        assert transfer.connection is not None
        transfer.state = TransferState.RECEIVING
        running.append(transfer)
        held_bytes += transfer.size_bytes
        yield Grant(transfer=transfer.transfer, connection=transfer.connection, size_bytes=transfer.size_bytes)
