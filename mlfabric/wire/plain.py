"""Messages as values that JSON can carry, for programs and pages."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from typing import Any

from google.protobuf.message import Message

__all__ = ["as_plain"]


def as_plain(message: Message) -> dict[str, Any]:
    """Return a message as JSON-ready values: every field by its name, numbers as numbers, an unset optional as null."""
    out: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.has_presence and field.message_type is None and not message.HasField(field.name):
            out[field.name] = None
        elif isinstance(value, Message):
            out[field.name] = as_plain(value)
        elif isinstance(value, Mapping):
            out[field.name] = dict(value)
        elif isinstance(value, MutableSequence):
            out[field.name] = [as_plain(item) if isinstance(item, Message) else item for item in value]
        else:
            out[field.name] = value
    return out
