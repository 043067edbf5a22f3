"""A server's state machine on a stage: one hosted model, offers and wants in one line, reasons left out of lists."""

from __future__ import annotations

import math
from dataclasses import replace

from mlfabric.model.samples import Samples
from mlfabric.model.specs import Layout, Method, ModelSpec, RuleSpec, TensorSpec
from mlfabric.protocol import (
    Commit,
    CommitsReported,
    Committed,
    DropReason,
    Expect,
    Expected,
    Followed,
    GetId,
    HostModel,
    ModelVersion,
    Serve,
    ServerHolds,
    SumId,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
    UpdateKind,
    Void,
)
from mlfabric.server import actions as act
from mlfabric.server.hosted import HostedModel, ServerConfig
from mlfabric.server.state import ServerState
from tests.bare import Scene

LAYOUT = Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),))
SIZE = LAYOUT.size_bytes
SPEC = ModelSpec(name="net", layout=LAYOUT)


class Stage(Scene):
    """One server that holds one model, and the clock."""

    state: ServerState

    def __init__(
        self,
        version: int = 0,
        budget_updates: int = 4,
        initialised: bool = True,
        method: Method = Method.ASYNCHRONOUS,
        weight_copies: int = 0,
        shards: int = 1,
        **rule_fields,
    ) -> None:
        shard = 0 if shards > 1 else None
        self.spec = replace(SPEC, rule=RuleSpec(**rule_fields), method=method, shards=shards, shard=shard)
        start = ServerHolds(server="s", spec=self.spec, version=ModelVersion(1, version), initialised=initialised)
        config = ServerConfig(name="s", receive_budget_bytes=budget_updates * SIZE, weight_copies=weight_copies)
        super().__init__(ServerState(config, [start]))

    @property
    def model(self) -> HostedModel:
        return self.state.models["net"]

    def bring(self, name: UpdateId, seq: int, connection: int = 1, **fields) -> list[act.Action]:
        """Expect, offer and receive an update; return what follows its last byte."""
        self.tell(expect(name, seq, **fields))
        self.tell(offer(name, connection))
        return self.tell(act.PayloadReceived(transfer=name, connection=connection))

    def bring_sum(self, name: SumId, seq: int, *members: Expected, connection: int = 1, **fields) -> list[act.Action]:
        """Expect, offer and receive a sum; return what follows its last byte."""
        order = expect_sum(name, seq, *members, **fields)
        self.tell(order)
        self.tell(offer(name, connection, length=order.size_bytes))
        return self.tell(act.PayloadReceived(transfer=name, connection=connection))

    def seeded(self) -> Stage:
        """Take a seed for a replica, whose bound begins to count once it follows."""
        self.tell(act.SeedTaken(model="net", history_norm=0.0, weights_norm=0.0, steps=0))
        return self

    def commit(self, name: UpdateId, seq: int, connection: int = 1, **fields) -> list[act.Action]:
        """Bring an update and let the store finish its step; return what follows."""
        self.bring(name, seq, connection, **fields)
        return self.step(name)

    def step(self, *names: TransferId) -> list[act.Action]:
        """Let the store finish a step."""
        return self.tell(act.StepDone(model="net", transfers=names, step_norm=1.0))


def update(worker: str, counter: int = 0) -> UpdateId:
    return UpdateId(worker, 1, counter)


def get(worker: str, counter: int = 0) -> GetId:
    return GetId(worker, 1, counter)


def expect(name: UpdateId, seq: int, computed_from: int = 0, epoch: int = 1, ticket: bytes = b"", **fields) -> Expect:
    of_member = {key: fields.pop(key) for key in ("resolved_below", "norm", "samples") if key in fields}
    return Expect(
        to=fields.pop("to", "s"),
        transfer=name,
        members=(member(name, computed_from, epoch, **of_member),),
        model="net",
        seq=seq,
        ticket=ticket or str(name).encode(),
        size_bytes=fields.pop("size_bytes", SIZE),
        tau_max=fields.pop("tau_max", 4),
        kind=fields.pop("kind", UpdateKind.GRADIENT),
        after=fields.pop("after", ()),
        reason="",
        **fields,
    )


def member(
    name: UpdateId,
    computed_from: int = 0,
    epoch: int = 1,
    resolved_below: int = 0,
    norm: float = 1.0,
    samples: Samples = (),
) -> Expected:
    return Expected(name, ModelVersion(epoch, computed_from), resolved_below, norm, samples)


def expect_sum(name: SumId, seq: int, *members: Expected, lrs: tuple[float, ...] | None = None, **fields) -> Expect:
    """Expect a sum of these members, of one image and with learning rates 0.1 if nothing else is said."""
    lone = expect(members[0].update, seq, ticket=str(name).encode(), **fields)
    size_bytes = fields.get("size_bytes", SIZE)
    lrs = (0.1,) * len(members) if lrs is None else lrs
    return replace(lone, transfer=name, members=members, lrs=lrs, size_bytes=size_bytes)


def offer(name: TransferId, connection: int = 1, ticket: bytes = b"", **fields) -> act.Offered:
    shown = {"length": SIZE, "digest": LAYOUT.digest} | fields
    return act.Offered(connection=connection, transfer=name, ticket=ticket or str(name).encode(), **shown)


def serve(name: GetId, ticket: bytes = b"", version: ModelVersion | None = None, **fields) -> Serve:
    return Serve(
        to="s",
        get=name,
        model="net",
        ticket=ticket or str(name).encode(),
        min_version=ModelVersion(1, fields.pop("min_version", 0)),
        after_updates=fields.pop("after_updates", ()),
        after=fields.pop("after", ()),
        rate_bps=fields.pop("rate_bps", 0),
        reason="",
        version=version,
    )


def want(name: GetId, connection: int = 1, ticket: bytes = b"") -> act.Wanted:
    return act.Wanted(connection=connection, get=name, ticket=ticket or str(name).encode())


def followed(version: int = 0, *held: UpdateId, norm: float = math.inf, updates: int | None = None) -> Followed:
    return Followed(
        to="s",
        model="net",
        replica="r",
        version=ModelVersion(1, version),
        held=held,
        norm=norm,
        updates=updates,
        reason="",
    )


def void(name: TransferId) -> Void:
    return Void(to="s", model="net", transfer=name, reason="")


def grant(name: TransferId, connection: int = 1, size_bytes: int = SIZE) -> act.Grant:
    return act.Grant(transfer=name, connection=connection, size_bytes=size_bytes)


def forget(name: TransferId) -> act.Forget:
    return act.Forget(transfer=name)


def answer(name: UpdateId, outcome, connection: int = 1) -> act.Answer:
    return answer_all(((name, outcome),), connection)


def answer_all(outcomes, connection: int = 1) -> act.Answer:
    return act.Answer(connection=connection, outcomes=tuple(outcomes))


def refuse(connection: int = 1) -> act.Refuse:
    return act.Refuse(connection=connection, reason="")


def abandon(connection: int = 1) -> act.Abandon:
    return act.Abandon(connection=connection)


def apply(*names: TransferId, version: int, kind=act.StepKind.ONE, lrs: tuple[float, ...] = (0.1,)) -> act.ApplyStep:
    return act.ApplyStep(model="net", transfers=names, kind=kind, lrs=lrs, version=ModelVersion(1, version))


def apply_sum(name: SumId, version: int, lrs: tuple[float, ...] = (0.1, 0.1)) -> act.ApplyStep:
    return apply(name, version=version, kind=act.StepKind.SUM, lrs=lrs)


def serving(name: GetId, version: int, connection: int = 1) -> act.ServeModel:
    return act.ServeModel(get=name, model="net", connection=connection, version=ModelVersion(1, version), rate_bps=0)


def committed(number: int, tau: int = 0) -> Committed:
    return Committed(version=ModelVersion(1, number), tau=tau)


def commit(name: UpdateId, version: int, tau: int = 0, lr=0.1, step_norm=1.0) -> Commit:
    return Commit(update=name, version=ModelVersion(1, version), tau=tau, lr=lr, step_norm=step_norm)


def commit_report(name: UpdateId, version: int, tau: int = 0, lr=0.1, step_norm=1.0, again=False) -> act.Report:
    return group_report(commit(name, version, tau, lr, step_norm), again=again)


def group_report(*commits: Commit, again=False) -> act.Report:
    return act.Report(event=CommitsReported(server="s", model="net", commits=commits), again=again)


def end_report(
    name: TransferId | GetId, end: TransferEnd, cause: DropReason | None = None, detail: str = "", again=False
) -> act.Report:
    event = TransferEnded(member="s", model="net", transfer=name, end=end, cause=cause, detail=detail)
    return act.Report(event=event, again=again)


def hosted(spec: ModelSpec = SPEC) -> HostModel:
    return HostModel(to="s", spec=spec, reason="")
