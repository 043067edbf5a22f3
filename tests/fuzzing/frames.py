"""Random frames for data ports that look like real ones, and what no such frame may bring about."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mlfabric import wire
from mlfabric.channels import Frame, FrameKind
from mlfabric.channels.base import CARRIES_PAYLOAD
from mlfabric.channels.frames import encode_header
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import TransferId
from mlfabric.v1 import data_pb2

from .messages import Words, noise, random_message

__all__ = ["no_faults", "random_frames", "send_all"]

META = {
    FrameKind.OFFER: data_pb2.OfferMeta,
    FrameKind.WANT: data_pb2.WantMeta,
    FrameKind.MODEL: data_pb2.ModelMeta,
    FrameKind.OUTCOME: data_pb2.OutcomeMeta,
    FrameKind.REFUSE: data_pb2.RefuseMeta,
}
USUAL = (FrameKind.OFFER, FrameKind.OFFER, FrameKind.WANT, FrameKind.PAYLOAD, FrameKind.PAYLOAD, FrameKind.REFUSE)
LONGEST_SENT = 100_000
PATIENCE_S = 20.0


def random_frames(draw: random.Random, spec: ModelSpec, transfer: TransferId, ticket: bytes) -> list[bytes]:
    """Return some frames as bytes, most of them about a transfer that their receiver expects."""
    return [_frame(draw, spec, transfer, ticket) for _ in range(draw.randrange(1, 7))]


def _frame(draw: random.Random, spec: ModelSpec, transfer: TransferId, ticket: bytes) -> bytes:
    size_bytes = spec.layout.size_bytes
    kind = draw.choice(USUAL if draw.random() < 0.9 else tuple(FrameKind))
    words = Words(names=("raw", "honest"), models=(spec.name,), samples={}, size_bytes=size_bytes, epoch=1)
    meta = b""
    if kind in META:
        message = random_message(META[kind], draw, words)
        if kind is FrameKind.OFFER and draw.random() < 0.8:
            message.transfer.CopyFrom(wire.to_transfer_id(transfer))
            message.image = bytes(size_bytes) if draw.random() < 0.3 else b""
            message.size_bytes = size_bytes if draw.random() < 0.9 else draw.choice((0, 1, 2**63))
        meta = message.SerializeToString()
    length = draw.choice((0, size_bytes, size_bytes, 1, 2**40)) if kind in CARRIES_PAYLOAD else 0
    shown = ticket if draw.random() < 0.9 else draw.randbytes(16)
    digest = spec.layout.digest if draw.random() < 0.9 else draw.getrandbits(64)
    head = encode_header(Frame(kind=kind, ticket=shown, length=length, digest=digest, meta=meta), paced=False)
    raw = head + meta + bytes(min(length, LONGEST_SENT))
    return noise(raw, draw) if draw.random() < 0.1 else raw


def send_all(address: str, frames: Iterable[bytes]) -> None:
    """Send frames on a connection of their own, until the other end cuts it off or has taken in all.

    Raises:
        TimeoutError: the other end neither reads nor closes.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as line:
        try:
            for frame in frames:
                line.sendall(frame)
            line.shutdown(socket.SHUT_WR)
            while line.recv(65536):
                pass
        except TimeoutError:
            raise
        except OSError:
            return


class _Faults(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.stories: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.stories.append(self.format(record))


@contextmanager
def no_faults() -> Iterator[list[str]]:
    """Collect what is logged as an error, such as an exception that nobody awaits: no peer may bring that about."""
    faults = _Faults()
    logging.getLogger().addHandler(faults)
    try:
        yield faults.stories
    finally:
        logging.getLogger().removeHandler(faults)
