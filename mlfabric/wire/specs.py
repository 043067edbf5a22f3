"""Models, members, admissions and link rates on the wire: what is said when joining, and by the monitor."""

from __future__ import annotations

from mlfabric.protocol import Welcome
from mlfabric.specs import (
    MAX_EPOCH,
    Layout,
    Member,
    Mode,
    ModelSpec,
    MomentumAt,
    Role,
    RuleKind,
    RuleSpec,
    Schedule,
    TensorKind,
    TensorSpec,
    Term,
)
from mlfabric.v1 import fabric_pb2 as fabric
from mlfabric.v1 import types_pb2 as types
from mlfabric.wire.values import enum_of, malformed, need

__all__ = [
    "fill_spec",
    "from_admission",
    "from_member",
    "from_spec",
    "from_term",
    "to_admission",
    "to_member",
    "to_spec",
    "to_term",
]

_TENSOR_KIND_TO = {
    TensorKind.PARAMETER: types.TENSOR_KIND_PARAMETER,
    TensorKind.BUFFER: types.TENSOR_KIND_BUFFER,
    TensorKind.COUNTER: types.TENSOR_KIND_COUNTER,
    TensorKind.RATES: types.TENSOR_KIND_RATES,
}
_SCHEDULE_TO = {
    Schedule.CONSTANT: types.SCHEDULE_CONSTANT,
    Schedule.STEP: types.SCHEDULE_STEP,
    Schedule.COSINE: types.SCHEDULE_COSINE,
}
_MODE_TO = {
    Mode.ASYNCHRONOUS: types.MODE_ASYNCHRONOUS,
    Mode.SYNCHRONOUS: types.MODE_SYNCHRONOUS,
    Mode.STALE_SYNCHRONOUS: types.MODE_STALE_SYNCHRONOUS,
    Mode.ALL_REDUCE: types.MODE_ALL_REDUCE,
}
_RULE_KIND_TO = {
    RuleKind.SGD: types.RULE_KIND_SGD,
    RuleKind.ADAM: types.RULE_KIND_ADAM,
    RuleKind.ADADELAY: types.RULE_KIND_ADADELAY,
}
_MOMENTUM_AT_TO = {
    None: types.MOMENTUM_AT_UNSPECIFIED,
    MomentumAt.SERVER: types.MOMENTUM_AT_SERVER,
    MomentumAt.WORKERS: types.MOMENTUM_AT_WORKERS,
}
_TENSOR_KIND_OF: dict[int, TensorKind] = {number: value for value, number in _TENSOR_KIND_TO.items()}
_SCHEDULE_OF: dict[int, Schedule] = {number: value for value, number in _SCHEDULE_TO.items()}
_MODE_OF: dict[int, Mode] = {number: value for value, number in _MODE_TO.items()}
_RULE_KIND_OF: dict[int, RuleKind] = {number: value for value, number in _RULE_KIND_TO.items()}
_MOMENTUM_AT_OF: dict[int, MomentumAt | None] = {number: value for value, number in _MOMENTUM_AT_TO.items()}


def to_spec(spec: ModelSpec) -> types.ModelSpec:
    """Make the message of a model."""
    message = types.ModelSpec()
    fill_spec(message, spec)
    return message


def fill_spec(message: types.ModelSpec, spec: ModelSpec) -> None:
    """Write a model into a message."""
    message.name = spec.name
    for tensor in spec.layout.tensors:
        kind = _TENSOR_KIND_TO[tensor.kind]
        message.layout.add(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype, kind=kind, group=tensor.group)
    _fill_rule(message.rule, spec.rule)
    message.mode = _MODE_TO[spec.mode]
    if spec.tau_max is not None:
        message.tau_max = spec.tau_max
    message.slack = spec.slack
    message.server = spec.server
    message.frozen_digest = spec.frozen_digest
    message.workers = spec.workers
    message.shards = spec.shards
    if spec.shard is not None:
        message.shard = spec.shard


def from_spec(message: types.ModelSpec) -> ModelSpec:
    """Return the model that a message holds.

    Raises:
        UsageError: its layout, rule, mode or a bound is missing, unknown or out of range.
    """
    need(message, "rule")
    if message.HasField("div_max"):
        raise malformed("ModelSpec.div_max", message.div_max, "absent; no model has a replica in this version")
    return ModelSpec(
        name=message.name,
        layout=Layout(tuple(_from_tensor(tensor) for tensor in message.layout)),
        rule=_from_rule(message.rule),
        mode=enum_of(_MODE_OF, message.mode, "ModelSpec.mode"),
        tau_max=message.tau_max if message.HasField("tau_max") else None,
        slack=message.slack,
        server=message.server,
        frozen_digest=message.frozen_digest,
        workers=message.workers,
        shards=message.shards or 1,
        shard=message.shard if message.HasField("shard") else None,
    )


def _from_tensor(message: types.TensorSpec) -> TensorSpec:
    return TensorSpec(
        name=message.name,
        shape=tuple(message.shape),
        dtype=message.dtype,
        kind=enum_of(_TENSOR_KIND_OF, message.kind, f"TensorSpec.kind of {message.name!r}"),
        group=message.group,
    )


def _fill_rule(message: types.UpdateRule, rule: RuleSpec) -> None:
    message.lr = rule.lr
    message.momentum = rule.momentum
    message.weight_decay = rule.weight_decay
    message.schedule = _SCHEDULE_TO[rule.schedule]
    message.warmup_versions = rule.warmup_versions
    message.milestones.extend(rule.milestones)
    message.factor = rule.factor
    message.total_versions = rule.total_versions
    message.kind = _RULE_KIND_TO[rule.kind]
    message.momentum_at = _MOMENTUM_AT_TO[rule.momentum_at]
    message.beta1, message.beta2, message.epsilon = rule.beta1, rule.beta2, rule.epsilon
    message.decoupled = rule.decoupled
    message.smoothness, message.delay_scale = rule.smoothness, rule.delay_scale
    message.clip_norm = rule.clip_norm


def _from_rule(message: types.UpdateRule) -> RuleSpec:
    return RuleSpec(
        lr=message.lr,
        momentum=message.momentum,
        weight_decay=message.weight_decay,
        schedule=enum_of(_SCHEDULE_OF, message.schedule, "UpdateRule.schedule"),
        warmup_versions=message.warmup_versions,
        milestones=tuple(message.milestones),
        factor=message.factor,
        total_versions=message.total_versions,
        kind=enum_of(_RULE_KIND_OF, message.kind, "UpdateRule.kind"),
        momentum_at=_from_momentum_at(message.momentum_at),
        beta1=message.beta1,
        beta2=message.beta2,
        epsilon=message.epsilon,
        decoupled=message.decoupled,
        smoothness=message.smoothness,
        delay_scale=message.delay_scale,
        clip_norm=message.clip_norm,
    )


def _from_momentum_at(number: int) -> MomentumAt | None:
    if number not in _MOMENTUM_AT_OF:
        raise malformed("UpdateRule.momentum_at", number, ", ".join(map(str, _MOMENTUM_AT_OF)))
    return _MOMENTUM_AT_OF[number]


def to_member(member: Member, software_version: str = "") -> types.Member:
    """Make the message of a member; its role is said by the call that carries it."""
    return types.Member(
        name=member.name,
        incarnation=member.incarnation,
        host=member.host,
        address=member.address,
        up_bps=member.up_bps,
        down_bps=member.down_bps,
        protocol_version=member.protocol_version,
        software_version=software_version,
        seen=to_term(member.seen) if member.seen.epoch else None,
        pulse_key=member.pulse_key,
    )


def to_term(term: Term) -> types.Term:
    """Make the message of a scheduler's term."""
    return types.Term(epoch=term.epoch, instance=term.instance)


def from_term(message: types.Term) -> Term:
    """Return the term that a message holds.

    Raises:
        UsageError: no scheduler can have that epoch.
    """
    if message.epoch >= MAX_EPOCH:
        raise malformed("Term.epoch", message.epoch, f"less than {MAX_EPOCH}")
    return Term(message.epoch, message.instance)


def from_member(message: types.Member, role: Role) -> Member:
    """Return the member that a message holds, in the role that it registers as.

    Raises:
        UsageError: it has no name or no host, or has seen a scheduler that there cannot be.
    """
    for field in ("name", "host"):
        if not getattr(message, field):
            raise malformed(f"Member.{field}", "", "a name that is not empty")
    return Member(
        name=message.name,
        role=role,
        incarnation=message.incarnation,
        host=message.host,
        address=message.address,
        up_bps=message.up_bps,
        down_bps=message.down_bps,
        protocol_version=message.protocol_version,
        seen=from_term(message.seen),
        pulse_key=message.pulse_key,
    )


def to_admission(welcome: Welcome, session_token: bytes, pulse_port: int) -> fabric.Admission:
    """Make the answer to a registration.

    Args:
        welcome: what the scheduler decided.
        session_token: what the member shows when it opens its session.
        pulse_port: where signs of life go.
    """
    return fabric.Admission(
        epoch=welcome.epoch,
        session_token=session_token,
        tau_max=welcome.tau_max,
        server=welcome.server,
        server_address=welcome.server_address,
        initialise=welcome.initialise,
        monitor_address=welcome.monitor_address,
        monitor_token=welcome.monitor_token,
        reason=welcome.reason,
        clock=welcome.clock,
        instance=welcome.instance,
        lost=welcome.lost,
        pulse_port=pulse_port,
        server_epoch=welcome.server_epoch,
    )


def from_admission(message: fabric.Admission, to: str, incarnation: int) -> Welcome:
    """Return the welcome that a registration was answered with.

    Args:
        message: the answer.
        to: name of the member that registered.
        incarnation: of that member.
    """
    return Welcome(
        to=to,
        incarnation=incarnation,
        epoch=message.epoch,
        tau_max=message.tau_max,
        server=message.server,
        server_address=message.server_address,
        initialise=message.initialise,
        monitor_address=message.monitor_address,
        monitor_token=message.monitor_token,
        reason=message.reason,
        clock=message.clock,
        instance=message.instance,
        lost=message.lost,
        server_epoch=message.server_epoch,
    )
