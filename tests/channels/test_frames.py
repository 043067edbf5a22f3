"""Frames as values and as bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.channels.base import CARRIES_PAYLOAD, MAX_META_BYTES, Frame, FrameKind
from mlfabric.channels.frames import HEADER_BYTES, MAGIC, check_magic, decode_header, encode_header
from mlfabric.errors import TransferError, UsageError

TICKET = b"0123456789abcdef"
u64 = st.integers(min_value=0, max_value=(1 << 64) - 1)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(FrameKind))
    return Frame(
        kind=kind,
        ticket=draw(st.binary(min_size=16, max_size=16)),
        length=draw(u64) if kind in CARRIES_PAYLOAD else 0,
        digest=draw(u64),
        meta=draw(st.binary(max_size=100)),
    )


@given(frames(), st.booleans())
def test_what_is_encoded_is_decoded(frame: Frame, paced: bool) -> None:
    raw = encode_header(frame, paced=paced)
    header = decode_header(raw, max_payload_bytes=1 << 64)
    assert len(raw) == HEADER_BYTES
    assert (header.kind, header.ticket, header.length, header.digest) == (
        frame.kind,
        frame.ticket,
        frame.length,
        frame.digest,
    )
    assert (header.meta_bytes, header.paced) == (len(frame.meta), paced)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_never_give_anything_but_a_header_or_a_transfer_error(raw: bytes) -> None:
    for start in (raw, MAGIC + raw[4:], MAGIC + b"\x00\x02" + raw[6:]):
        try:
            header = decode_header(start, max_payload_bytes=1000)
        except TransferError:
            continue
        assert header.length <= 1000
        assert header.meta_bytes <= MAX_META_BYTES


@given(st.integers(min_value=0, max_value=len(MAGIC)))
def test_a_part_of_the_magic_is_not_refused(n: int) -> None:
    check_magic(MAGIC[:n])


@pytest.mark.parametrize("start", [b"G", b"MLFX", b"GET / HTTP/1.1"])
def test_a_wrong_magic_is_refused_from_its_first_wrong_byte(start: bytes) -> None:
    with pytest.raises(TransferError, match="wanted b'MLFB'"):
        check_magic(start)


def replaced(at: int, new: bytes) -> bytes:
    raw = encode_header(Frame(kind=FrameKind.PAYLOAD, ticket=TICKET, length=10), paced=False)
    return raw[:at] + new + raw[at + len(new) :]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (replaced(4, b"\x00\x63"), "version 99, wanted 2"),
        (replaced(6, b"\x63"), "kind 99 came"),
        (replaced(24, b"\xff" * 8), f"announced {2**64 - 1} payload bytes, wanted at most 1000"),
        (replaced(40, b"\x00\x01\x00\x01"), "65537 bytes of meta came, wanted at most 65536"),
        (replaced(6, bytes([FrameKind.GRANT])), "GRANT frame announced 10 payload bytes, wanted at most 0"),
    ],
)
def test_a_header_that_is_not_allowed_says_what_came_and_what_was_wanted(raw: bytes, says: str) -> None:
    with pytest.raises(TransferError, match=says):
        decode_header(raw, max_payload_bytes=1000)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ticket": b"short"}, "ticket of 5 bytes; allowed: 16 bytes"),
        ({"length": -1}, "length=-1"),
        ({"length": 1 << 64}, r"0 to 2\*\*64 - 1"),
        ({"digest": 1 << 64}, "digest="),
        ({"meta": bytes(MAX_META_BYTES + 1)}, "meta of 65537 bytes"),
        ({"kind": FrameKind.WANT, "length": 1}, "WANT frame: length=1; allowed: 0"),
    ],
)
def test_a_frame_that_cannot_travel_is_refused_where_it_is_made(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Frame(**{"kind": FrameKind.PAYLOAD, "ticket": TICKET, **fields})
