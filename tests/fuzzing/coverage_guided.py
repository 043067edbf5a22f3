"""Coverage-guided fuzzing of everything that turns a peer's bytes into values: framing, events, instructions, meta.

``make fuzz`` runs ``python -m tests.fuzzing.coverage_guided TARGET --seconds S --corpus DIRECTORY`` for each target.
Bytes may become a value or one of the errors that are meant for them; what was made of a value must say the same again.
Anything else ends the run, and libFuzzer leaves the bytes in a file beside the corpus.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["mlfabric.wire", "mlfabric.channels.frames"]):
    from mlfabric import wire
    from mlfabric.channels.frames import HEADER_BYTES, check_magic, decode_header, encode_header

from google.protobuf.message import DecodeError

from mlfabric.channels import Frame
from mlfabric.channels.base import MAX_META_BYTES
from mlfabric.errors import TransferError, UsageError
from mlfabric.model.specs import Layout, ModelSpec, Role, TensorSpec
from mlfabric.protocol import UpdateId
from mlfabric.v1 import data_pb2, fabric_pb2, session_pb2, types_pb2
from tests.fuzzing.frames import random_frames
from tests.fuzzing.messages import Words, random_message

__all__ = ["TARGETS", "main"]

ME = "node-3"
MOST_PAYLOAD_BYTES = 1 << 40
LONGEST_INPUT = 4096


def frames(raw: bytes) -> None:
    """Read headers one after the other, as a connection does; what is read must give the same bytes again."""
    at = 0
    with contextlib.suppress(TransferError):
        while len(head := raw[at : at + HEADER_BYTES]) == HEADER_BYTES:
            header = decode_header(head, max_payload_bytes=MOST_PAYLOAD_BYTES)
            assert header.meta_bytes <= MAX_META_BYTES
            assert header.length <= MOST_PAYLOAD_BYTES
            meta = bytes(header.meta_bytes)
            frame = Frame(kind=header.kind, ticket=header.ticket, length=header.length, digest=header.digest, meta=meta)
            again = decode_header(encode_header(frame, paced=header.paced), max_payload_bytes=MOST_PAYLOAD_BYTES)
            assert again == header
            at += HEADER_BYTES + header.meta_bytes
        check_magic(raw[at:])


def events(raw: bytes) -> None:
    """Read an event; what was read can be sent and read again, and is the same."""
    with contextlib.suppress(DecodeError, UsageError):
        event = wire.from_event(session_pb2.Event.FromString(raw), ME)
        again = session_pb2.Event.FromString(wire.to_event(event).SerializeToString())
        assert repr(wire.from_event(again, ME)) == repr(event)  # repr: what is not a number equals itself


def instructions(raw: bytes) -> None:
    """Read an instruction; what was read can be sent and read again, and is the same."""
    with contextlib.suppress(DecodeError, UsageError):
        instruction = wire.from_instruction(session_pb2.Instruction.FromString(raw), ME)
        again = session_pb2.Instruction.FromString(wire.to_instruction(instruction).SerializeToString())
        assert repr(wire.from_instruction(again, ME)) == repr(instruction)


def calls(raw: bytes) -> None:
    """Read what registrations and other calls hold; the first byte says which."""
    _read_one(CALLS, raw)


def meta(raw: bytes) -> None:
    """Read what frames carry beside tensors; the first byte says which."""
    _read_one(META, raw)


def _read_one(readers: Readers, raw: bytes) -> None:
    if raw:
        kind, read = readers[raw[0] % len(readers)]
        with contextlib.suppress(DecodeError, UsageError):
            read(kind.FromString(raw[1:]))


Readers = Sequence[tuple[type[Any], Callable[[Any], object]]]
CALLS: Readers = (
    (types_pb2.ModelSpec, wire.from_spec),
    (types_pb2.Member, lambda message: wire.from_member(message, Role.WORKER)),
    (fabric_pb2.RegisterAsReplicaRequest, wire.from_following),
    (types_pb2.Term, wire.from_term),
    (fabric_pb2.Admission, lambda message: wire.from_admission(message, ME, 1)),
)
META: Readers = (
    (data_pb2.OfferMeta, lambda message: wire.from_transfer_id(message.transfer)),
    (data_pb2.OfferMeta, lambda message: wire.from_server_holds(message.seed, message.seed.server)),
    (data_pb2.WantMeta, lambda message: wire.from_get_id(message.get)),
    (data_pb2.ModelMeta, lambda message: wire.from_version(message.version)),
    (data_pb2.OutcomeMeta, wire.from_outcomes),
)
TARGETS = {target.__name__: target for target in (frames, events, instructions, calls, meta)}


def _seeds(target: str, count: int = 200) -> list[bytes]:
    """Return good inputs to begin with: bytes alone hardly ever become a message that is worth reading."""
    draw = random.Random(target)
    if target == "frames":
        spec = ModelSpec(name="net", layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)))
        drawn_frames = (random_frames(draw, spec, UpdateId(ME, 1, 0), bytes(16)) for _ in range(count))
        return [b"".join(found)[:LONGEST_INPUT] for found in drawn_frames]
    words = Words(names=(ME,), models=("net",), samples={}, size_bytes=16, epoch=1, me=ME)
    if target in ("events", "instructions"):
        kind = session_pb2.Event if target == "events" else session_pb2.Instruction
        return [random_message(kind, draw, words).SerializeToString() for _ in range(count)]
    kinds = CALLS if target == "calls" else META
    drawn = [draw.randrange(len(kinds)) for _ in range(count)]
    return [bytes([i]) + random_message(kinds[i][0], draw, words).SerializeToString() for i in drawn]


def main() -> None:
    """Fuzz one target for a while; ends with an error if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=[*TARGETS])
    parser.add_argument("--seconds", type=int, default=20, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer's random numbers")
    parser.add_argument("--corpus", type=Path, required=True, help="where inputs that are worth keeping are kept")
    given = parser.parse_args()
    given.corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(_seeds(given.target)):
        (given.corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={given.seconds}", f"-max_len={LONGEST_INPUT}", "-rss_limit_mb=4096", "-timeout=10"]
    where = [f"-artifact_prefix={given.corpus.parent / given.target}-found-", str(given.corpus)]
    atheris.Setup([sys.argv[0], *limits, f"-seed={given.seed}", "-print_final_stats=1", *where], TARGETS[given.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
