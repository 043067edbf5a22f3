"""From messages: a function for each pair of a value's type and a message, made when the first of its kind comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Any, get_args

from google.protobuf.descriptor import Descriptor

from mlfabric.wire.field_limits import CHECKS, GIVEN, LIMITS, REFUSED, malformed, most_ranges
from mlfabric.wire.made_functions import Lazy, Text
from mlfabric.wire.ranges import from_numbers
from mlfabric.wire.shapes import SPEAKERS, Field, Form, arms_of, fields_of, is_flat, is_union, numbers_of, only_oneof

__all__ = ["reader"]


@cache
def reader(kind: Any, message: Descriptor, beside: tuple[str, ...] = (), arm: str = "") -> Callable[..., Any]:
    """Return the function that makes a value of a message.

    Args:
        kind: the value's type; may be a union.
        message: that holds the value.
        beside: what is given to the function after the message, by name: see :mod:`mlfabric.wire.shapes`.
        arm: where the message is in the one that the function is given; "" if it is given the message itself.

    Returns:
        A function that raises :class:`~mlfabric.errors.UsageError` if the message is incomplete or out of range.
    """
    if is_union(kind):
        return _union_reader(kind, only_oneof(message), beside)
    text = Text("m", *beside)
    text.add(*([f"m = m.{arm}"] if arm else []))
    for path in (f"{message.name}.{each.name}" for each in message.fields):
        if path in REFUSED:
            held = f"m.{path.partition('.')[2]}"
            text.add(f"if m.HasField({held[2:]!r}): raise malformed({path!r}, {held}, {REFUSED[path]!r})")
    fields = fields_of(kind, message)
    found: dict[str, str] = {}
    for field in fields:
        found[field.name] = _taken(text, field, beside)
        if kind in SPEAKERS and field is fields[0]:
            _check_speaker(text, field)
    is_named = is_dataclass(kind)
    given = "".join(f"{name}={each}, " if is_named else f"{each}, " for name, each in found.items())
    text.add(f"value = {text.named(kind) if isinstance(kind, type) else ''}({given})")
    text.add(*([f"{text.named(CHECKS[kind])}(value)"] if kind in CHECKS else []), "return value")
    return text.made()


def _union_reader(kind: Any, oneof: Any, beside: tuple[str, ...]) -> Callable[..., Any]:
    arms, message = arms_of(kind, oneof), oneof.containing_type

    def read(which: str | None) -> Callable[..., Any]:
        if which is None:
            raise malformed(f"{message.name}.{oneof.name}", None, ", ".join(arms))
        return reader(arms[which], message.fields_by_name[which].message_type, beside, which)

    text = Text("m", *beside)
    text.add(f"return {text.named(Lazy(read))}[m.WhichOneof({oneof.name!r})]({', '.join(('m', *beside))})")
    return text.made()


def _check_speaker(text: Text, field: Field) -> None:
    """Refuse a message in which somebody else speaks."""
    if field.form is Form.BESIDE:
        return
    inner = f".{fields_of(field.type, field.slot.message_type)[0].name}" if field.form is Form.VALUE else ""
    path, name = field.path + inner, f"m.{field.name}{inner}"
    text.add(f"if {name} != member: raise malformed({path!r}, {name}, f'{{member!r}}, whose session this is')")


def _taken(text: Text, field: Field, beside: tuple[str, ...]) -> str:
    """Return the expression for the value of a field; the text gets what comes before it."""
    held = f"m.{field.name}"
    match field.form:
        case Form.BESIDE:
            return field.name if field.name in GIVEN else "member"
        case Form.MAP:
            return f"tuple(sorted({held}.items()))"
        case Form.UNION:
            return f"{text.named(_union_reader(field.type, field.slot, ()))}(m)"
        case Form.RANGES:
            settings = f"{len(get_args(field.type))}, {most_ranges(field.path)}, {field.path!r}"
            return f"{text.named(from_numbers)}(held, {settings}) if (held := {held}) else ()"
    found = _many(text, field, beside) if field.is_many else _one(text, field, beside)
    limit = LIMITS.get(field.path)
    return f"{text.named(partial(limit.check, field.path))}({found})" if limit else found


def _many(text: Text, field: Field, beside: tuple[str, ...]) -> str:
    if field.form is Form.SCALAR:
        found = f"tuple(m.{field.name})"
    else:
        each = _made(text, field, beside, "each")
        found = f"tuple([{each} for each in held[:]]) if (held := m.{field.name}) else ()"
    return f"{text.named(field.wrapper[0])}({found})" if field.wrapper else found


def _one(text: Text, field: Field, beside: tuple[str, ...]) -> str:
    held = f"m.{field.name}"
    if field.form is Form.ENUM:
        return f"{text.named(_members(field))}[{held}]"
    if field.form is Form.SCALAR and field.may_lack:
        return f"{held} or {text.named(field.default)}"
    if field.form is Form.VALUE and not field.is_optional:
        if not field.may_lack:
            text.add(f"if not m.HasField({field.name!r}): raise UsageError('{field.path} is missing; it must be set')")
        text.add(f"{field.name}_ = {held}")
        return _made(text, field, beside, f"{field.name}_")
    found = _made(text, field, beside, f"(held := {held})") if field.form is Form.VALUE else held
    return f"{found} if m.HasField({field.name!r}) else None" if field.is_optional else found


def _made(text: Text, field: Field, beside: tuple[str, ...], held: str) -> str:
    """Return the expression for the value of a message."""
    if is_flat(field.type, field.slot.message_type):
        first, *others = (each.name for each in fields_of(field.type, field.slot.message_type))
        name = held.strip("(").partition(" ")[0]
        return f"{text.named(field.type)}({', '.join([f'{held}.{first}', *(f'{name}.{each}' for each in others)])})"
    beside = beside if field.type in SPEAKERS else ()
    return f"{text.named(reader(field.type, field.slot.message_type, beside))}({', '.join((held, *beside))})"


def _members(field: Field) -> Mapping[int, Any]:
    """Return the members of an enum by their numbers; to ask for another number is refused."""
    found = numbers_of(field.type, field.slot.enum_type)
    allowed = ", ".join(f"{number} ({each.name})" for number, each in found.items())
    table = Lazy(partial(_refuse, field.path, allowed))
    table.update(found)
    if field.is_optional or field.may_lack:
        table[0] = None if field.is_optional else field.default
    return table


def _refuse(field: str, allowed: str, given: object) -> Any:
    raise malformed(field, given, allowed)
