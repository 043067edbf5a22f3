"""A server's state machine on a stage: one hosted model, offers and wants in one line, reasons left out of lists."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.protocol import (
    Commit,
    CommitsReported,
    DropReason,
    Expect,
    GetId,
    HostModel,
    ModelVersion,
    Serve,
    ServerHolds,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
    Void,
)
from mlfabric.server import actions as act
from mlfabric.server.hosted import HostedModel
from mlfabric.server.state import ServerConfig, ServerState
from mlfabric.specs import Layout, ModelSpec, RuleSpec, TensorSpec

LAYOUT = Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),))
SIZE = LAYOUT.size_bytes
SPEC = ModelSpec(name="net", layout=LAYOUT)


def bare(actions: list[act.Action]) -> list[act.Action]:
    """Leave the reasons out."""
    return [replace(a, reason="") for a in actions]


class Stage:
    """One server that holds one model, and the clock."""

    def __init__(self, version: int = 0, budget_updates: int = 4, momentum: float = 0.0, initialised=True) -> None:
        self.spec = replace(SPEC, rule=RuleSpec(momentum=momentum))
        start = ServerHolds(server="s", spec=self.spec, version=ModelVersion(1, version), initialised=initialised)
        self.state = ServerState(ServerConfig(name="s", receive_budget_bytes=budget_updates * SIZE), [start])
        self.now_ns = 0

    @property
    def model(self) -> HostedModel:
        return self.state.models["net"]

    def tell(self, event: act.ServerEvent | Tick) -> list[act.Action]:
        """Hand over one event, check the invariants, return what follows."""
        actions = self.state.handle(event, self.now_ns)
        self.state.validate()
        return bare(actions)

    def tick(self, seconds: float) -> list[act.Action]:
        self.now_ns += round(seconds * 1e9)
        return self.tell(Tick())

    def bring(self, name: UpdateId, seq: int, connection: int = 1, **fields) -> list[act.Action]:
        """Expect, offer and receive an update; return what follows its last byte."""
        self.tell(expect(name, seq, **fields))
        self.tell(offer(name, connection))
        return self.tell(act.PayloadReceived(update=name, connection=connection))

    def step(self, name: UpdateId) -> list[act.Action]:
        """Let the store finish a step."""
        return self.tell(act.StepDone(model="net", update=name, step_norm=1.0))


def update(worker: str, counter: int = 0) -> UpdateId:
    return UpdateId(worker, 1, counter)


def get(worker: str, counter: int = 0) -> GetId:
    return GetId(worker, 1, counter)


def expect(name: UpdateId, seq: int, computed_from: int = 0, ticket: bytes = b"", **fields) -> Expect:
    return Expect(
        to="s",
        update=name,
        model="net",
        seq=seq,
        ticket=ticket or str(name).encode(),
        size_bytes=SIZE,
        computed_from=ModelVersion(1, computed_from),
        tau_max=fields.pop("tau_max", 4),
        kind=fields.pop("kind", UpdateKind.GRADIENT),
        resolved_below=fields.pop("resolved_below", 0),
        after=fields.pop("after", ()),
        reason="",
        **fields,
    )


def offer(name: UpdateId, connection: int = 1, ticket: bytes = b"", **fields) -> act.Offered:
    shown = {"length": SIZE, "digest": LAYOUT.digest} | fields
    return act.Offered(connection=connection, update=name, ticket=ticket or str(name).encode(), **shown)


def serve(name: GetId, ticket: bytes = b"", **fields) -> Serve:
    return Serve(
        to="s",
        get=name,
        model="net",
        ticket=ticket or str(name).encode(),
        min_version=ModelVersion(1, fields.pop("min_version", 0)),
        after_update=fields.pop("after_update", None),
        after=fields.pop("after", ()),
        rate_bps=fields.pop("rate_bps", 0),
        reason="",
    )


def want(name: GetId, connection: int = 1, ticket: bytes = b"") -> act.Wanted:
    return act.Wanted(connection=connection, get=name, ticket=ticket or str(name).encode())


def void(name: UpdateId) -> Void:
    return Void(to="s", model="net", update=name, reason="")


def grant(name: UpdateId, connection: int = 1) -> act.Grant:
    return act.Grant(update=name, model="net", connection=connection, size_bytes=SIZE, reason="")


def forget(name: UpdateId) -> act.Forget:
    return act.Forget(update=name, reason="")


def answer(name: UpdateId, outcome, connection: int = 1) -> act.Answer:
    return act.Answer(update=name, connection=connection, outcome=outcome, reason="")


def abandon(name: UpdateId, connection: int = 1) -> act.Abandon:
    return act.Abandon(update=name, connection=connection, reason="")


def apply(name: UpdateId, version: int) -> act.ApplyStep:
    return act.ApplyStep(model="net", update=name, lr=0.1, version=ModelVersion(1, version), reason="")


def serving(name: GetId, version: int, connection: int = 1) -> act.ServeModel:
    return act.ServeModel(
        get=name, model="net", connection=connection, version=ModelVersion(1, version), rate_bps=0, reason=""
    )


def refuse_want(name: GetId, connection: int = 1) -> act.RefuseWant:
    return act.RefuseWant(get=name, connection=connection, reason="")


def commit_report(name: UpdateId, version: int, tau: int = 0, lr=0.1, step_norm=1.0, again=False) -> act.Report:
    commit = Commit(update=name, version=ModelVersion(1, version), tau=tau, lr=lr, step_norm=step_norm)
    return act.Report(event=CommitsReported(server="s", model="net", commits=(commit,)), again=again)


def end_report(
    name: UpdateId | GetId, end: TransferEnd, cause: DropReason | None = None, detail: str = "", again=False
) -> act.Report:
    event = TransferEnded(server="s", model="net", transfer=name, end=end, cause=cause, detail=detail)
    return act.Report(event=event, again=again)


def hosted(spec: ModelSpec = SPEC) -> HostModel:
    return HostModel(to="s", spec=spec, reason="")
