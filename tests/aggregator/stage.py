"""An aggregator's state machine on a stage: two known models, offers and wants in one line, reasons left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlfabric.aggregator import actions as act
from mlfabric.aggregator.state import AggregatorState
from mlfabric.channels import TICKET_BYTES
from mlfabric.model.specs import Layout, ModelSpec, TensorSpec
from mlfabric.protocol import (
    CancelSum,
    Committed,
    DropReason,
    GetId,
    HandOn,
    HandOnTo,
    HostModel,
    ModelVersion,
    Outcome,
    Sum,
    SumId,
    SumInput,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
)
from tests.bare import Scene

BIG = ModelSpec(name="big", layout=Layout((TensorSpec(name="w", shape=(8192,), dtype="float32"),)))
SMALL = ModelSpec(name="small", layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)))
SPECS = {spec.name: spec for spec in (BIG, SMALL)}
SIZE = BIG.layout.size_bytes
SERVER = "127.0.0.1:1"


class Stage(Scene):
    """One aggregator that knows two models, and the clock."""

    def __init__(self, budget_sums: int = 4) -> None:
        super().__init__(AggregatorState("a", budget_sums * SIZE))
        for spec in SPECS.values():
            self.tell(HostModel(to="a", spec=spec, reason=""))

    def bring(self, transfer: TransferId, connection: int, **fields) -> list[act.Action]:
        """Offer and seal an input; return what follows its seal."""
        self.tell(offer(transfer, connection, **fields))
        return self.tell(sealed(transfer, connection))


def update(worker: str, counter: int = 0) -> UpdateId:
    return UpdateId(worker, 1, counter)


def sum_id(counter: int) -> SumId:
    return SumId(1, counter)


def get(worker: str, counter: int = 0) -> GetId:
    return GetId(worker, 1, counter)


def ticket(what: object) -> bytes:
    """Return a ticket that says what it is for."""
    return str(what).encode().ljust(TICKET_BYTES, b".")


def sum_order(counter: int, inputs: Sequence[SumInput], **fields: Any) -> Sum:
    """Return the order to sum these and bring the sum to a server."""
    good: dict[str, Any] = {
        "to": "a",
        "sum": sum_id(counter),
        "inputs": tuple(inputs),
        "members": tuple(one.transfer for one in inputs if isinstance(one.transfer, UpdateId)),
        "images": 1,
        "cut_through": False,
        "receiver": "server-0",
        "ticket": ticket("out"),
        "rate_bps": 0,
        "seq": counter,
        "reason": "",
    }
    return Sum(**{**good, **fields})


def order(counter: int, *transfers: TransferId, model: str = "big", after=(), **fields) -> Sum:
    """Return the order to sum these; ``after`` maps a transfer to those before it."""
    size_bytes, images = SPECS[model].layout.size_bytes, fields.get("images", 1)
    inputs = [
        SumInput(
            transfer=t,
            ticket=ticket(t),
            first=1.0,
            second=0.0,
            size_bytes=size_bytes * (images if isinstance(t, SumId) else 1),
            after=tuple(dict(after).get(t, ())),
        )
        for t in transfers
    ]
    return sum_order(counter, inputs, model=model, address=SERVER, **fields)


def offer(transfer: TransferId, connection: int, model: str = "big", **fields) -> act.Offered:
    layout = SPECS[model].layout
    shown: dict[str, Any] = {"ticket": ticket(transfer), "length": layout.size_bytes, "digest": layout.digest}
    return act.Offered(connection=connection, transfer=transfer, **(shown | fields))


def sealed(transfer: TransferId, connection: int) -> act.PayloadReceived:
    return act.PayloadReceived(transfer=transfer, connection=connection)


def broken(transfer: TransferId, connection: int) -> act.TransferBroken:
    return act.TransferBroken(transfer=transfer, connection=connection, detail="it broke")


def unusable(transfer: TransferId, connection: int, cause=DropReason.NOT_FINITE) -> act.InputUnusable:
    return act.InputUnusable(transfer=transfer, connection=connection, cause=cause, detail="w has NaN or Inf")


def outcomes(counter: int, *entries: tuple[UpdateId, Outcome]) -> act.OutcomesReceived:
    return act.OutcomesReceived(sum=sum_id(counter), outcomes=entries)


def committed(version: int) -> Committed:
    return Committed(version=ModelVersion(1, version), tau=0)


def cancel(counter: int) -> CancelSum:
    return CancelSum(to="a", model="big", sum=sum_id(counter), reason="")


def reserve(plan: Sum) -> act.ReserveSum:
    return act.ReserveSum(plan=plan, spec=SPECS[plan.model])


def offer_sum(plan: Sum, whole: bool = False) -> act.OfferSum:
    return act.OfferSum(plan=plan, spec=SPECS[plan.model], whole=whole)


def seal(counter: int) -> act.SealSum:
    return act.SealSum(sum=sum_id(counter))


def give_up(counter: int) -> act.GiveUp:
    return act.GiveUp(sum=sum_id(counter), reason="")


def grant(counter: int, index: int, transfer: TransferId, connection: int) -> act.Grant:
    return act.Grant(sum=sum_id(counter), index=index, transfer=transfer, connection=connection)


def answer(connection: int, *entries: tuple[UpdateId, Outcome]) -> act.Answer:
    return act.Answer(connection=connection, outcomes=entries)


def refuse(connection: int) -> act.Refuse:
    return act.Refuse(connection=connection, reason="")


def abandon(connection: int) -> act.Abandon:
    return act.Abandon(connection=connection)


def report(
    transfer: TransferId | GetId,
    end: TransferEnd,
    detail: str = "",
    cause: DropReason | None = None,
    model: str = "big",
) -> act.Report:
    return act.Report(
        event=TransferEnded(member="a", model=model, transfer=transfer, end=end, cause=cause, detail=detail)
    )


def hand_on(own: GetId, *targets: GetId, model: str = "big") -> HandOn:
    return HandOn(
        to="a",
        get=own,
        model=model,
        source="server-0",
        address=SERVER,
        ticket=ticket("out"),
        targets=tuple(HandOnTo(t, ticket(t), 0) for t in targets),
        reason="",
    )


def want(who: GetId, connection: int, shown: bytes = b"") -> act.Wanted:
    return act.Wanted(connection=connection, get=who, ticket=shown or ticket(who))


def start_fetch(plan: HandOn) -> act.StartFetch:
    return act.StartFetch(plan=plan, spec=SPECS[plan.model])


def stop_fetch(own: GetId) -> act.StopFetch:
    return act.StopFetch(get=own, reason="")


def serving(own: GetId, who: GetId, connection: int, version: int) -> act.HandModelOn:
    return act.HandModelOn(
        source=own,
        get=who,
        connection=connection,
        version=ModelVersion(1, version),
        digest=BIG.layout.digest,
        rate_bps=0,
    )
