"""The fixed header before every frame, as bytes and back. Pure.

Network byte order: magic, protocol version, kind, flags, ticket, payload length, layout digest, meta length. What is
read from a peer is checked here, before anything of an announced size is allocated.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from mlfabric.channels.base import CARRIES_PAYLOAD, MAX_META_BYTES, Frame, FrameKind
from mlfabric.errors import TransferError
from mlfabric.model.specs import PROTOCOL_VERSION

__all__ = ["HEADER_BYTES", "MAGIC", "Header", "check_magic", "decode_header", "encode_header"]

MAGIC = b"MLFB"
PACED_FLAG = 1
_TLS_RECORD = re.compile(rb"[\x14-\x17]\x03[\x00-\x04]", re.DOTALL)
_HEADER = struct.Struct("!4sHBB16sQQI")
HEADER_BYTES = _HEADER.size
_KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A checked header: all of a frame but its meta."""

    kind: FrameKind
    paced: bool
    ticket: bytes
    length: int
    digest: int
    meta_bytes: int


def encode_header(frame: Frame, *, paced: bool) -> bytes:
    """Return the header of ``frame``; ``paced`` tells the receiver that its rate is planned, not the link's."""
    flags = PACED_FLAG if paced else 0
    meta_bytes = len(frame.meta)
    return _HEADER.pack(
        MAGIC, PROTOCOL_VERSION, frame.kind, flags, frame.ticket, frame.length, frame.digest, meta_bytes
    )


def check_magic(start: bytes | bytearray) -> None:
    """Raise TransferError if a header that starts like this cannot be ours; fewer than four bytes may be given."""
    seen = bytes(start[: len(MAGIC)])
    if _TLS_RECORD.match(seen):
        raise TransferError("the peer speaks TLS, and this end does not; give both ends --tls, or none")
    if not MAGIC.startswith(seen):
        raise TransferError(f"the data starts with {seen!r}, wanted {MAGIC!r}: the peer is no mlfabric data channel")


def decode_header(raw: bytes | bytearray, *, max_payload_bytes: int) -> Header:
    """Check and unpack ``HEADER_BYTES`` bytes.

    Args:
        raw: the header as it came.
        max_payload_bytes: the longest payload that this endpoint takes.

    Raises:
        TransferError: says what came and what was wanted.
    """
    check_magic(raw)
    _, version, kind, flags, ticket, length, digest, meta_bytes = _HEADER.unpack(raw)
    if version != PROTOCOL_VERSION:
        raise TransferError(f"the peer speaks protocol version {version}, wanted {PROTOCOL_VERSION}")
    if kind not in _KINDS:
        raise TransferError(f"frame kind {kind} came, wanted one of {sorted(_KINDS)}")
    if meta_bytes > MAX_META_BYTES:
        raise TransferError(f"a frame with {meta_bytes} bytes of meta came, wanted at most {MAX_META_BYTES}")
    limit = max_payload_bytes if kind in CARRIES_PAYLOAD else 0
    if length > limit:
        raise TransferError(f"a {_KINDS[kind].name} frame announced {length} payload bytes, wanted at most {limit}")
    paced = bool(flags & PACED_FLAG)
    return Header(kind=_KINDS[kind], paced=paced, ticket=ticket, length=length, digest=digest, meta_bytes=meta_bytes)
