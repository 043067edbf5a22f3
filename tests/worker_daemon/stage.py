"""A worker daemon's state machine on a stage: what a worker calls and hears, in one line each; reasons left out."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Fetch,
    GetId,
    GetRequested,
    MemberEvent,
    ModelVersion,
    Outcome,
    PushRequested,
    Send,
    UpdateId,
    UpdateKind,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import DaemonState
from tests.bare import Scene

DONE = Committed(version=ModelVersion(1, 7), tau=0)
LATE = Dropped(cause=DropReason.DELAY_BOUND)


class Stage(Scene):
    """One daemon whose model is on one server or on several, and the clock."""

    def __init__(self, shards: int = 1) -> None:
        super().__init__(DaemonState("a", shards=shards))
        self.shards = shards

    def push(self, *counters: int, kind: UpdateKind = UpdateKind.GRADIENT) -> list[act.Action]:
        asked = (replace(push(counter, shards=self.shards), kind=kind) for counter in counters)
        return self.tell(*asked)

    def get(self, *counters: int, after: int | None = None) -> list[act.Action]:
        """Get a model, in parts if it has them; it follows the push whose first part has the counter ``after``."""
        afters = [None if after is None else after + counter - counters[0] for counter in counters]
        asked = (get(*both, shards=self.shards) for both in zip(counters, afters, strict=True))
        return self.tell(*asked)

    def break_off(self, counter: int, ticket: bytes = b"1") -> list[act.Action]:
        return self.tell(act.SendBroken(update=update(counter), ticket=ticket))


def update(counter: int) -> UpdateId:
    return UpdateId("a", 1, counter)


def get_id(counter: int) -> GetId:
    return GetId("a", 1, counter)


def model_of(counter: int, shards: int) -> str:
    return "net" if shards == 1 else f"net.shard{counter % shards}"


def push(counter: int, resolved_below: int = 0, shards: int = 1) -> PushRequested:
    return PushRequested(
        update=update(counter),
        model=model_of(counter, shards),
        size_bytes=16,
        computed_from=ModelVersion(1, 0),
        norm=1.0,
        resolved_below=resolved_below,
    )


def get(counter: int, after: int | None = None, min_version: int = 0, shards: int = 1) -> GetRequested:
    return GetRequested(
        get=get_id(counter),
        model=model_of(counter, shards),
        min_version=ModelVersion(1, min_version) if min_version else ModelVersion(0, 0),
        after_update=None if after is None else update(after),
    )


def send(counter: int, ticket: bytes = b"1") -> Send:
    return Send(
        to="a", update=update(counter), receiver="s", address="s:1", seq=1, ticket=ticket, rate_bps=0, reason=""
    )


def fetch(counter: int, ticket: bytes = b"1") -> Fetch:
    return Fetch(to="a", get=get_id(counter), source="s", address="s:1", ticket=ticket, reason="")


def asks(request: MemberEvent) -> act.Request:
    return act.Request(event=request)


def settles(counter: int, outcome: Outcome) -> act.Settle:
    return act.Settle(update=update(counter), outcome=outcome, reason="")


def delivers(counter: int, number: int) -> act.Deliver:
    return act.Deliver(get=get_id(counter), version=ModelVersion(1, number))


def arrived(counter: int, number: int) -> act.ModelReceived:
    return act.ModelReceived(get=get_id(counter), version=ModelVersion(1, number))


def broken(counter: int, ticket: bytes = b"1") -> act.FetchBroken:
    return act.FetchBroken(get=get_id(counter), ticket=ticket)


def answered(counter: int, outcome: Outcome) -> act.OutcomeReceived:
    return act.OutcomeReceived(update=update(counter), outcome=outcome)
