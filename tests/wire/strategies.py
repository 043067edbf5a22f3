"""Strategies for every value that travels, made from the fields and limits that its conversions are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any, get_args

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import assume
from hypothesis import strategies as st

from mlfabric.model.specs import (
    COUNTER_BYTES,
    DTYPE_BYTES,
    Layout,
    Member,
    Method,
    ModelSpec,
    MomentumAt,
    RoundOptions,
    RuleKind,
    RuleSpec,
    Schedule,
    TensorKind,
    TensorSpec,
)
from mlfabric.protocol import (
    Following,
    Instruction,
    JobClaim,
    MemberEvent,
    Outcome,
    ServerHolds,
    StepsTimed,
    TransferEnded,
    UpdateId,
    Welcome,
)
from mlfabric.v1 import data_pb2, fabric_pb2, session_pb2, types_pb2
from mlfabric.wire.field_limits import LIMITS, Limit
from mlfabric.wire.shapes import SPEAKERS, Field, Form, arms_of, fields_of, is_union, only_oneof

ME = "node-3"
WIDEST = {
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
u32, u64 = (st.integers(*WIDEST[kind]) for kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
CHECKED = {
    "JobClaim.job": st.text("abc-#9", max_size=20),
    "ReducePart.start": st.integers(0, 2**50).map(lambda n: 16 * n),
    "ReducePart.end": st.integers(2**54 + 1, 2**64 - 1),
    "ReduceRequested.dtype": st.sampled_from(sorted(DTYPE_BYTES)),
    "ReduceRequested.size_bytes": st.integers(0, 2**60).map(lambda n: 8 * n),
}
"""Fields that are checked together."""


# Models: what they may be is in their classes


kinds_and_dtypes = st.sampled_from(
    [
        *((kind, dtype) for kind in (TensorKind.PARAMETER, TensorKind.BUFFER) for dtype in sorted(DTYPE_BYTES)),
        *((TensorKind.COUNTER, dtype) for dtype in sorted(COUNTER_BYTES)),
    ]
)
tensors = st.builds(
    lambda name, shape, what: TensorSpec(name=name, shape=tuple(shape), kind=what[0], dtype=what[1]),
    name=name,
    shape=st.lists(u64, max_size=3),
    what=kinds_and_dtypes,
)
layouts = st.lists(tensors, min_size=1, max_size=3, unique_by=lambda t: t.name).map(lambda ts: Layout(tuple(ts)))


@st.composite
def rated_layouts(draw: st.DrawFn) -> Layout:
    """A layout whose updates bring rates."""
    plain, groups = draw(layouts), draw(st.integers(1, 2**32))
    grouped = tuple(replace(t, group=draw(st.integers(0, groups - 1))) for t in plain.tensors)
    rates = TensorSpec(name="(rates)", shape=(groups, 2), dtype="float64", kind=TensorKind.RATES)
    return Layout((*grouped, rates))


above_0 = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
below_1 = st.floats(0, 1, exclude_max=True)
scheduled = {
    "lr": above_0,
    "schedule": st.sampled_from(Schedule),
    "warmup_versions": u64,
    "milestones": st.lists(u64, max_size=3).map(sorted).map(tuple),
    "factor": st.floats(0, 1, exclude_min=True),
    "total_versions": st.integers(1, 2**64 - 1),
}
always = dict.fromkeys(("weight_decay", "clip_norm"), st.floats(min_value=0, allow_infinity=False))
sgd = {**scheduled, "momentum": below_1, "momentum_at": st.none() | st.sampled_from(MomentumAt)}
adam = {**scheduled, "beta1": below_1, "beta2": below_1, "epsilon": above_0, "decoupled": st.booleans()}
adadelay = {"smoothness": above_0, "delay_scale": above_0}
rules = st.one_of(
    st.builds(RuleSpec, kind=st.just(RuleKind.SGD), **sgd, **always),
    st.builds(RuleSpec, kind=st.just(RuleKind.ADAM), **adam, **always),
    st.builds(RuleSpec, kind=st.just(RuleKind.ADADELAY), **adadelay, **always),
)


round_options = st.builds(
    RoundOptions,
    tau_max=st.integers(0, 1_000),
    at_least=st.floats(0, 1, exclude_min=True),
    quorum=st.sampled_from(["solo", "majority", "full", "auto", "3"]),
    full_every=st.integers(1, 1_000),
    average_every=st.integers(0, 1_000_000),
    mixing=st.sampled_from(["ring", "exponential"]),
)


@st.composite
def a_spec(draw: st.DrawFn) -> ModelSpec:
    method, layout = draw(st.sampled_from(Method)), draw(layouts | rated_layouts())
    is_half = any(t.kind is TensorKind.PARAMETER and DTYPE_BYTES[t.dtype] < 4 for t in layout.tensors)
    allowed = set(RuleKind) - {RuleKind.ADAM} if is_half else {RuleKind.ADAM} if layout.rate_groups else set(RuleKind)
    assume(not (is_half and layout.rate_groups))
    return ModelSpec(
        name=draw(name),
        layout=layout,
        rule=draw(rules.filter(lambda rule: rule.kind in allowed)),
        method=method,
        tau_max=draw(st.none() | st.integers(0, 2**63 - 1)) if method is Method.ASYNCHRONOUS else None,
        slack=draw(u64) if method is Method.STALE_SYNCHRONOUS else 0,
        server=draw(text),
        frozen_digest=draw(text),
        rounds=draw(round_options) if method.is_only_wrapped else None,
        workers=draw(u32) if method in (Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS) else 0,
    )


@st.composite
def a_part(draw: st.DrawFn) -> ModelSpec:
    """A part of a model, or the whole that is cut."""
    tensor = TensorSpec(name=draw(name), shape=(draw(st.integers(20, 99)),), dtype="float64")
    shards = draw(st.integers(1, 5))
    spec = ModelSpec(name=draw(name), layout=Layout((tensor,)), shards=shards)
    return spec.of_shard(draw(st.integers(0, shards - 1))) if shards > 1 and draw(st.booleans()) else spec


@st.composite
def timed_steps(draw: st.DrawFn) -> StepsTimed:
    """As many times as the steps have micro-batches."""
    steps, micro_batches = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    times = st.lists(st.integers(1, 2**50), min_size=steps * micro_batches, max_size=steps * micro_batches)
    rest = st.lists(st.integers(0, 2**50), min_size=steps, max_size=steps)
    return StepsTimed(
        worker=ME,
        model=draw(name),
        micro_batches=micro_batches,
        computed_ns=tuple(draw(times)),
        rest_ns=tuple(draw(rest)),
    )


specs = a_spec() | a_part()
MODELS: dict[Any, st.SearchStrategy[Any]] = {
    ModelSpec: specs,
    RuleSpec: rules,
    StepsTimed: timed_steps(),
    TensorSpec: tensors,
}


# All other values: what they may be is in the types of their fields, in the contract and in the limits


@cache
def values(kind: Any, message: Descriptor) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type that travel in this message."""
    if kind in MODELS:
        return MODELS[kind]
    if is_union(kind):
        return unions(kind, only_oneof(message))
    first, *others = fields_of(kind, message)
    drawn = {field.name: several(field) for field in (first, *others)}
    if kind in SPEAKERS:
        drawn[first.name] = st.just(ME)
        if first.form is Form.VALUE:
            drawn[first.name] = several(first).map(lambda found: found._replace(worker=ME))
    made: Any = kind
    if dataclasses.is_dataclass(kind):
        return st.builds(made, **drawn)
    return st.builds(made, *drawn.values()) if isinstance(kind, type) else st.tuples(*drawn.values())


def unions(kind: Any, oneof: Any) -> st.SearchStrategy[Any]:
    return st.one_of([values(each, message) for each, message in _arms(kind, oneof)])


def several(field: Field) -> st.SearchStrategy[Any]:
    """Return a strategy for what a field holds, None and tuples included."""
    limit = LIMITS.get(field.path, Limit(allowed=""))
    if field.form is Form.RANGES:
        return runs() if len(get_args(field.type)) == 3 else runs().map(as_samples)
    if field.is_many and field.form is not Form.MAP:
        made = st.lists(one(field, limit), min_size=limit.is_some, max_size=3).map(tuple)
        return made.map(field.wrapper[0]) if field.wrapper else made
    return st.none() | one(field, limit) if field.is_optional else one(field, limit)


def one(field: Field, limit: Limit) -> st.SearchStrategy[Any]:
    match field.form:
        case Form.BESIDE:
            given = {"to": st.just(ME), "incarnation": u64}
            return st.sampled_from(field.type) if issubclass(field.type, Enum) else given.get(field.name, text)
        case Form.UNION:
            return unions(field.type, field.slot)
        case Form.VALUE:
            return values(field.type, field.slot.message_type)
        case Form.ENUM:
            return st.sampled_from(field.type)
        case Form.MAP:
            return st.dictionaries(text, u64, max_size=3).map(lambda kinds: tuple(sorted(kinds.items())))
    return CHECKED[field.path] if field.path in CHECKED else scalars(field, limit)


def scalars(field: Field, limit: Limit) -> st.SearchStrategy[Any]:
    if field.type is float:
        at_most = None if limit.most == float("inf") else limit.most
        at_least = None if limit.least == -float("inf") else limit.least
        return st.floats(at_least, at_most, allow_nan=False)
    if field.type is int:
        low, high = WIDEST[field.slot.cpp_type]
        return st.integers(int(max(low, limit.least, field.may_lack)), int(min(high, limit.most)))
    return {bool: st.booleans(), bytes: st.binary(max_size=16), str: name if limit.is_some else text}[field.type]


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[int, int, int], ...]:
    """Runs of samples in order; those that touch differ in how often they were trained on."""
    at = 0
    out: list[tuple[int, int, int]] = []
    some_runs = st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**40), st.integers(1, 2**63)), max_size=3)
    for gap, length, drawn in draw(some_runs):
        times = drawn if gap or not out or out[-1][2] != drawn else drawn + 1
        out.append((at + gap, at + gap + length, times))
        at += gap + length
    return tuple(out)


def as_samples(found: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Leave out how often runs were trained on, and those that touch the one before."""
    ends = {stop for _, stop, _ in found}
    return tuple((start, stop) for start, stop, _ in found if start not in ends)


EVENT, INSTRUCTION = session_pb2.Event.DESCRIPTOR, session_pb2.Instruction.DESCRIPTOR
ROOTS: tuple[tuple[Any, Descriptor], ...] = (
    (MemberEvent, EVENT),
    (Instruction, INSTRUCTION),
    (Member, types_pb2.Member.DESCRIPTOR),
    (JobClaim, types_pb2.JobClaim.DESCRIPTOR),
    (Welcome, fabric_pb2.Admission.DESCRIPTOR),
    (Following, fabric_pb2.RegisterAsReplicaRequest.DESCRIPTOR),
    (tuple[UpdateId, Outcome], data_pb2.MemberOutcome.DESCRIPTOR),
)
"""All others are within these."""


def all_values(*roots: tuple[Any, Descriptor]) -> Iterator[tuple[Any, Descriptor]]:
    """Give every type of values that travels, and the message that it travels in; unions are left out."""
    for kind, message in roots:
        if is_union(kind):
            yield from all_values(*_arms(kind, only_oneof(message)))
            continue
        yield kind, message
        for field in fields_of(kind, message):
            if field.form is Form.VALUE:
                yield from all_values((field.type, field.slot.message_type))
            elif field.form is Form.UNION:
                yield from all_values(*_arms(field.type, field.slot))


def _arms(kind: Any, oneof: Any) -> list[tuple[Any, Descriptor]]:
    return [
        (each, oneof.containing_type.fields_by_name[arm].message_type) for arm, each in arms_of(kind, oneof).items()
    ]


events: st.SearchStrategy[MemberEvent] = values(MemberEvent, EVENT)
instructions: st.SearchStrategy[Instruction] = values(Instruction, INSTRUCTION)
members, claims, welcomes, followings, outcomes = (values(kind, message) for kind, message in ROOTS[2:])
ends = values(TransferEnded, session_pb2.TransferEnded.DESCRIPTOR)
holds = values(ServerHolds, session_pb2.ServerHolds.DESCRIPTOR)
