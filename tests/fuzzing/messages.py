"""Random messages of the wire contract that look like real ones: by field, mostly what could be, sometimes what cannot.

No term of a newer scheduler is drawn: where there is no TLS, whoever shows one ends the scheduler.

A message is drawn from a ``random.Random``, so that a seed stands for it. The contract's own descriptors say what there
is to fill; a message or field that is added later is drawn, too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from mlfabric.model.specs import DTYPE_BYTES, PROTOCOL_VERSION

__all__ = ["Words", "newest_term", "noise", "random_message"]

DEEPEST = 6
INTEGERS = (0, 0, 1, 1, 2, 3, 4, 16, 64)
EXTREMES = (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
FLOATS = (0.0, 0.1, 0.5, 1.0, 1.0, 10.0)
WILD_FLOATS = (-1.0, 1e308, 1e-308, float("nan"), float("inf"), float("-inf"))
WILD_TEXTS = ("", "x" * 201, "a,b", "\x00", "\u202e", "/../..", "core", "?", "none")
SPEAKER = ("member", "worker", "server", "replica")
_LARGEST = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a fabric knows, for messages that are about it.

    Args:
        names: of members and hosts.
        models: of models.
        samples: good messages, by the name of their kind, which are mostly taken in place of drawn ones.
        size_bytes: a size that fits a model.
        epoch: of the scheduler.
        me: who speaks; "" is anybody.
        wildness: how many of all scalars, texts and presences are drawn from what cannot be; 0 to 1.
    """

    names: Sequence[str]
    models: Sequence[str]
    samples: Mapping[str, Sequence[Message]]
    size_bytes: int
    epoch: int
    me: str = ""
    wildness: float = 0.02


def random_message(kind: type[Message], draw: random.Random, words: Words) -> Any:
    """Return a message of this kind."""
    message = kind()
    _fill(message, draw, words, 0)
    return message


def noise(raw: bytes, draw: random.Random) -> bytes:
    """Return bytes with a few of them changed, inserted or cut off."""
    damaged = bytearray(raw)
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(damaged) + 1)
        damaged[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
    return bytes(damaged[: draw.randrange(len(damaged) + 1)] if draw.random() < 0.1 else damaged)


def newest_term(message: Any) -> int:
    """Return the greatest number of a term that is anywhere in a message; 0 if there is none."""
    if message.DESCRIPTOR.name == "Term":
        return int(message.number)
    inner = [
        held
        for field, value in message.ListFields()
        if field.message_type is not None and not field.message_type.GetOptions().map_entry
        for held in (value if field.is_repeated else [value])
    ]
    return max(map(newest_term, inner), default=0)


def _fill(message: Message, draw: random.Random, words: Words, depth: int) -> None:
    wild = words.wildness
    samples = words.samples.get(message.DESCRIPTOR.name, ())
    if samples and draw.random() >= wild:
        message.CopyFrom(draw.choice(samples))
        if draw.random() >= wild:
            return
    descriptor: Any = message.DESCRIPTOR  # its types differ from one implementation to the next
    for oneof in descriptor.oneofs:
        if draw.random() >= wild:
            _set(message, draw.choice(oneof.fields), draw, words, depth)
    for field in descriptor.fields:
        if field.containing_oneof is None and draw.random() >= wild:
            _set(message, field, draw, words, depth)


def _set(message: Message, field: Any, draw: random.Random, words: Words, depth: int) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        getattr(message, field.name)[draw.choice(words.names)] = draw.choice(INTEGERS)
    elif field.is_repeated:
        _extend(getattr(message, field.name), field, draw, words, depth)
    elif inner is not None and inner.name == "Term":
        getattr(message, field.name).number = draw.randrange(words.epoch)
    elif inner is not None:
        getattr(message, field.name).SetInParent()
        if depth < DEEPEST:
            _fill(getattr(message, field.name), draw, words, depth + 1)
    else:
        setattr(message, field.name, _scalar(message.DESCRIPTOR, field, draw, words))


def _extend(held: Any, field: Any, draw: random.Random, words: Words, depth: int) -> None:
    for _ in range(draw.choice((1, 1, 2, 3)) if depth < DEEPEST else 0):
        if field.message_type is None:
            held.append(_scalar(field.containing_type, field, draw, words))
        else:
            _fill(held.add(), draw, words, depth + 1)


def _scalar(owner: Any, field: Any, draw: random.Random, words: Words) -> Any:
    is_wild = draw.random() < words.wildness
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return draw.randbytes(draw.choice((0, 8, 16, 16)))
        case FieldDescriptor.CPPTYPE_STRING:
            return draw.choice(WILD_TEXTS) if is_wild else _text(owner, field, draw, words)
        case FieldDescriptor.CPPTYPE_BOOL:
            return draw.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return draw.choice(WILD_FLOATS if is_wild else FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return 99 if is_wild else draw.choice([v.number for v in field.enum_type.values][1:])
        case kind:
            return _integer(field.name, draw, words, _LARGEST[kind], is_wild)


def _text(owner: Any, field: Any, draw: random.Random, words: Words) -> str:
    if words.me and field.name in SPEAKER and draw.random() < 0.9:
        return words.me
    if field.name == "dtype":
        return draw.choice(sorted(DTYPE_BYTES))
    if field.name == "model" or (owner.name, field.name) == ("ModelSpec", "name"):
        return draw.choice(words.models)
    if (owner.name, field.name) == ("ModelSpec", "server"):
        return draw.choice(("", "", *words.names))
    return draw.choice(("w", "b")) if owner.name == "TensorSpec" else draw.choice(words.names)


def _integer(name: str, draw: random.Random, words: Words, largest: int, is_wild: bool) -> int:
    if is_wild:
        return min(largest, draw.choice(EXTREMES))
    if name == "protocol_version":
        return PROTOCOL_VERSION
    if name == "incarnation":
        return 1
    if name in ("epoch", "term"):
        return draw.choice((1, words.epoch))
    return words.size_bytes if name == "size_bytes" else draw.choice(INTEGERS)
