"""Which field of a value travels in which field of a message: found by their names and types.

A value is a dataclass, a named tuple, or a plain tuple, whose entries are the message's fields in the order of their
numbers. Its fields have the names of the message's. A union is a ``oneof``: each of its classes is named like one of
the arms, but for ``Id`` (``UpdateId`` is ``update``). Enums agree name by name, behind the prefix of the contract.
A field that the message lacks is given beside it: the receiver of an instruction, or the speaker of an event, which is
always the event's first field. Whatever is left over on either side is a mistake of ours, and a :class:`TypeError`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, EnumDescriptor

from mlfabric.protocol import MemberEvent
from mlfabric.values import dataclass
from mlfabric.wire.field_limits import ADDED, GIVEN, LIMITS, REFUSED, ZERO_IS_DEFAULT

__all__ = ["SPEAKERS", "Field", "Form", "arms_of", "fields_of", "is_flat", "is_union", "numbers_of", "only_oneof"]

SPEAKERS = frozenset(get_args(MemberEvent))
"""Values whose first field says who speaks: a name, or an id that begins with one."""


class Form(Enum):
    """How a field travels."""

    BESIDE = auto()
    """Not in the message."""
    SCALAR = auto()
    ENUM = auto()
    VALUE = auto()
    """In a message of its own."""
    UNION = auto()
    """In a ``oneof`` of the message itself."""
    MAP = auto()
    """Pairs of a text and a number."""
    RANGES = auto()
    """Samples or runs of them, as numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a value.

    Args:
        name: in the value and in the message.
        path: what errors call it.
        type: of the value, of its entries if there are many, or of what it is if it is not None.
        form: how it travels, or how each of its entries does.
        is_optional: None is a value of it.
        is_many: it is a tuple.
        wrapper: the class that has nothing but this tuple, and its field; None if the value has the tuple itself.
        may_lack: it may not be there, and is its default then.
        default: what it is then.
        slot: the descriptor of the message's field, or ``oneof``.
    """

    name: str
    path: str
    type: Any
    form: Form
    is_optional: bool = False
    is_many: bool = False
    wrapper: tuple[type, str] | None = None
    may_lack: bool = False
    default: Any = None
    slot: Any = None

    @property
    def is_plain(self) -> bool:
        """Whether it is always there and goes into the message as it is."""
        return self.form is Form.SCALAR and not (self.is_optional or self.is_many)


def is_union(kind: Any) -> bool:
    """Return whether a value's type is one of several."""
    return get_origin(kind) in (Union, UnionType)


def only_oneof(message: Descriptor) -> Any:
    """Return the one ``oneof`` of a message for a union."""
    (found,) = message.oneofs
    return found


def arms_of(kind: Any, oneof: Any) -> Mapping[str, type]:
    """Return the class of a union that travels in each arm of a ``oneof``."""
    named = {_snake(each.__name__.removesuffix("Id")): each for each in get_args(kind)}
    missing = [arm.name for arm in oneof.fields if arm.name not in named]
    if missing:
        raise TypeError(f"{oneof.containing_type.name}.{missing[0]} is no class of {kind}")
    return {arm.name: named[arm.name] for arm in oneof.fields}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def numbers_of(kind: type[Enum], contract: EnumDescriptor) -> Mapping[int, Enum]:
    """Return the enum's members by their numbers; 0, which is unspecified, is none of them."""
    unspecified, *others = contract.values
    prefix = unspecified.name.removesuffix("UNSPECIFIED")
    found = {each.number: each.name.removeprefix(prefix) for each in others}
    if set(found.values()) != set(kind.__members__):
        raise TypeError(
            f"{kind.__name__} has {', '.join(kind.__members__)}; {contract.name}: {', '.join(found.values())}"
        )
    return {number: kind[name] for number, name in found.items()}


@cache
def fields_of(kind: Any, message: Descriptor) -> tuple[Field, ...]:
    """Return the fields of a value that is no union, in its order."""
    hints, defaults = _annotated(kind, message)
    found = tuple(_field(message, name, hint, defaults) for name, hint in hints.items())
    known = {field.name for field in found}
    for field in found:
        known |= {arm.name for arm in field.slot.fields} if field.form is Form.UNION else set()
        is_speaker = kind in SPEAKERS and field is found[0]
        if field.form is Form.BESIDE and not is_speaker and field.name not in GIVEN:
            raise TypeError(f"{field.name} of {kind} is no field of {message.name}")
    for name in (each.name for each in message.fields):
        path = f"{message.name}.{name}"
        if name not in known and path not in ADDED and path not in REFUSED:
            raise TypeError(f"{message.name}.{name} is no field of {kind}")
    return found


def _annotated(kind: Any, message: Descriptor) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the types of a value's fields by their names, and the defaults of some."""
    if get_origin(kind) is tuple:
        names = [each.name for each in sorted(message.fields, key=lambda each: each.number)]
        return dict(zip(names, get_args(kind), strict=True)), {}
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        return {each.name: hints[each.name] for each in fields}, {each.name: each.default for each in fields}
    return {name: hints[name] for name in kind._fields}, kind._field_defaults


def _field(message: Descriptor, name: str, hint: Any, defaults: Mapping[str, Any]) -> Field:
    path = f"{message.name}.{name}"
    default = defaults.get(name, dataclasses.MISSING)
    options = [each for each in get_args(hint) if each is not NoneType] if is_union(hint) else [hint]
    is_optional = hint not in options and len(options) == 1
    kind = options[0] if is_optional else hint
    slot = message.fields_by_name.get(name)
    if slot is None and name in message.oneofs_by_name:
        return Field(name=name, path=path, type=kind, form=Form.UNION, slot=message.oneofs_by_name[name])
    if slot is None:
        return Field(name=name, path=path, type=kind, form=Form.BESIDE)
    wrapper = None
    if slot.is_repeated and dataclasses.is_dataclass(kind):
        (inner,) = dataclasses.fields(kind)
        wrapper, kind = (kind, inner.name), get_type_hints(kind)[inner.name]
    return Field(
        name=name,
        path=path,
        type=get_args(kind)[0] if slot.is_repeated else kind,
        form=_form(slot, kind),
        is_optional=is_optional,
        is_many=slot.is_repeated,
        wrapper=wrapper,
        may_lack=default is not dataclasses.MISSING and (slot.message_type is not None or path in ZERO_IS_DEFAULT),
        default=default,
        slot=slot,
    )


def _form(slot: Any, kind: Any) -> Form:
    if slot.message_type is not None:
        return Form.MAP if slot.message_type.GetOptions().map_entry else Form.VALUE
    if slot.enum_type is not None:
        return Form.ENUM
    return Form.RANGES if slot.is_repeated and get_origin(get_args(kind)[0]) is tuple else Form.SCALAR


def is_flat(kind: Any, message: Descriptor) -> bool:
    """Return whether a value is a named tuple that goes into a message as it is."""
    if is_union(kind) or not hasattr(kind, "_fields"):
        return False
    return all(field.is_plain and field.path not in LIMITS for field in fields_of(kind, message))
