"""Values of the protocol as text that people read and compare.

A field that has its default is left out, and so are reasons and other words, tickets, layouts and addresses. Times are
in milliseconds. Numbers that are given out lose their size: ``A7`` is version 7 under the first server epoch that comes
up, ``B7`` under the second; ``1:3`` is the third of its kind that scheduler 1 counted; ``worker-0'#2`` is update 2 of
the second process of worker-0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from mlfabric.model.specs import Member, ModelSpec
from mlfabric.protocol import (
    Commit,
    GetId,
    GetRequested,
    ModelVersion,
    PushRequested,
    ReduceId,
    ReduceRequested,
    RoundId,
    SumId,
    UpdateId,
)
from mlfabric.scheduler.context import SEQ_BITS
from mlfabric.scheduler.followers.replica_sending import TERM_BITS

__all__ = ["Words"]

Within = Callable[[Any], str] | None

LEFT_OUT = {"reason", "detail", "layout", "digest", "address", "to", "epoch_base", "earlier"}
MARKS = {UpdateId: "#", GetId: "?", ReduceId: "+"}
COUNTED = {"seq", "unit", "term"}
"""Fields with a scheduler's term above what that scheduler counts."""
SERVER_EPOCHS = {"server_epoch", "server_epochs"}
WRAPPING = {"event", "plan", "request", "order"}
"""Fields of values that say what is to be done with another one."""
ABOUT = {"member", "server", "worker", "replica", "model"}
"""Fields that say about whom a value is, which many are about."""
NAMED = (Commit, GetRequested, PushRequested, ReduceRequested)
"""What is told by its name within other values, too."""
NOTHING = ModelVersion(0, 0)


class Words:
    """Tells values: each in full once, after that by its name, for what one machine sends another one takes in.

    Of several values of one name, the second is ``NAME~2``.
    """

    def __init__(self) -> None:
        self._epochs: dict[int, str] = {}
        self._told: dict[str, list[str]] = {}

    def tell(self, value: Any) -> str:
        """Tell an event, an instruction or an action: by its name if it was told before, else in full."""
        kind, fields = type(value).__name__, _said_fields(value)
        if fields.keys() <= WRAPPING:
            return " ".join([kind, *map(self.tell, fields.values())])
        if len(fields) < 2:
            return self._full(value)
        name, full = self._name(value), self._full(value)
        told = self._told.setdefault(name, [])
        if full not in told:
            told.append(full)
            return self._full(value, self.tell)
        place = told.index(full) + 1
        return name if place == 1 else f"{name}~{place}"

    def _name(self, value: Any) -> str:
        """Return a value's type with its first field, and with the first one that is its own."""
        fields = list(_said_fields(value).items())
        own = next((place for place, (field, _) in enumerate(fields) if field not in ABOUT), 0)
        texts = [self._text(item, field, self._name) for field, item in (fields[place] for place in sorted({0, own}))]
        return " ".join([type(value).__name__, *texts])

    def _full(self, value: Any, within: Within = None) -> str:
        """Tell all fields of a value.

        Args:
            within: how to tell what is ``NAMED`` and within the value; None for in full.
        """
        fields = (f"{_field(name)}={self._text(item, name, within)}" for name, item in _said_fields(value).items())
        return f"{type(value).__name__}({', '.join(fields)})".removesuffix("()")

    def _text(self, value: object, field: str = "", within: Within = None) -> str:
        match value:
            case UpdateId() | GetId() | ReduceId():
                return f"{_process(value.worker, value.incarnation)}{MARKS[type(value)]}{_counted(value.counter)}"
            case SumId() | RoundId():
                return f"{type(value).__name__[:-2].lower()} {value.term}:{value.counter}"
            case ModelVersion():
                return "none" if value == NOTHING else f"{self._epoch(value.epoch)}{value.number}"
            case Member():
                return _process(value.name, value.incarnation)
            case Enum() | ModelSpec():
                return _plain(value.name)
            case str():
                return _plain(value)
            case float():
                return f"{value:.4g}"
            case int() if field in SERVER_EPOCHS:
                return self._epoch(value)
            case int() if field in COUNTED:
                return _counted(value)
            case int() if field.endswith("_ns"):
                return f"{value / 1e6:.3f}"
            case _ if within is not None and isinstance(value, NAMED):
                return within(value)
            case _ if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
                return self._full(value, within)
            case tuple() | list():
                return f"[{', '.join(self._text(item, field, within) for item in value)}]"
            case _:
                return str(value)

    def _epoch(self, number: int) -> str:
        """Name a server's epoch by a letter."""
        return self._epochs.setdefault(number, chr(ord("A") + len(self._epochs))) if number else "none"


def _plain(name: str) -> str:
    return name.replace("model of server", "model")


def _process(name: str, incarnation: int) -> str:
    return name + "'" * (incarnation - 1)


def _field(name: str) -> str:
    return f"{name.removesuffix('_ns')}_ms" if name.endswith("_ns") else name


def _counted(number: int) -> str:
    """Tell a number that a scheduler's term may be above."""
    bits = next((bits for bits in (SEQ_BITS, TERM_BITS) if number >> bits), 0)
    return f"{number >> bits}:{number & ((1 << bits) - 1)}" if bits else str(number)


def _said_fields(value: Any) -> Mapping[str, object]:
    """Return the fields of a value that are neither left out nor as they are by default."""
    return {
        name: getattr(value, name)
        for name, default in _defaults(value)
        if name not in LEFT_OUT and not isinstance(getattr(value, name), bytes) and getattr(value, name) not in default
    }


def _defaults(value: Any) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Give the names of a value's fields, and with what each goes without saying."""
    if not dataclasses.is_dataclass(value):
        for name in value._fields:
            yield name, (value._field_defaults[name],) if name in value._field_defaults else ("", ())
        return
    for field in dataclasses.fields(value):
        if field.default_factory is not dataclasses.MISSING:
            yield field.name, (field.default_factory(),)
        else:
            yield field.name, ("", ()) if field.default is dataclasses.MISSING else (field.default,)
