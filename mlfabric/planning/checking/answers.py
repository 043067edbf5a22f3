"""Gets: each is answered or deferred exactly once, by a transfer of its model to its own host."""

from __future__ import annotations

from collections import Counter

from mlfabric.planning.checking.view import View, listed
from mlfabric.planning.plan import GetServed, Kind, Toward
from mlfabric.planning.plan_values import GetCandidate
from mlfabric.protocol import GetId

__all__ = ["check_gets"]


def check_gets(view: View) -> None:
    """Assert that each get is settled once, at its host, in full, and that every model comes from the server."""
    plan = view.plan
    deferred = [d.what for d in plan.deferred if isinstance(d.what, GetId)]
    settled = Counter([g.get for g in plan.gets] + deferred)
    wanted = {g.get: g for g in plan.batch.gets}
    for get in wanted:
        assert settled[get] == 1, f"the get {get} is answered or deferred {settled[get]} times; once is right"
    strange = [g for g in settled if g not in wanted]
    assert not strange, f"{listed(strange)}: settled, but not in the batch"
    for answer in plan.gets:
        _check_answer(view, answer, wanted[answer.get])
    for i, transfer in enumerate(view.transfers):
        if transfer.kind is Kind.MODEL and view.state.server:
            _check_model(view, i)


def _check_answer(view: View, answer: GetServed, wanted: GetCandidate) -> None:
    """Assert that one transfer brings a get whole, to its host, and when."""
    get = answer.get
    assert 0 <= answer.transfer < len(view.transfers), f"the get {get} is answered by no transfer of this plan"
    bringing = [i for i, transfer in enumerate(view.transfers) if transfer.get == get]
    assert answer.transfer in bringing, f"the get {get} is answered by {view.name(answer.transfer)}"
    assert len(bringing) == 1, f"the get {get} is answered by transfers {listed(bringing)}; one is right"
    transfer, name = view.transfers[answer.transfer], view.name(answer.transfer)
    at, start_ns, size = transfer.destination, transfer.profile.start_ns, transfer.size_bytes
    assert at == wanted.destination, f"{name} answers {get}, whose host is {wanted.destination}"
    assert start_ns >= wanted.ready_ns, f"{name} starts at {start_ns}, {get} is ready at {wanted.ready_ns}"
    assert size == wanted.size_bytes, f"the get {get} is answered with {size} bytes, it wants {wanted.size_bytes}"
    in_time = answer.arrive_ns == transfer.arrive_ns
    assert in_time, f"the get {get} is answered at {answer.arrive_ns}, its model is there at {transfer.arrive_ns}"


def _check_model(view: View, i: int) -> None:
    """Assert that a model comes from the server or is relayed, and that somebody needs it."""
    transfer, name = view.transfers[i], view.name(i)
    assert transfer.toward is Toward.WORKERS, f"{name} goes toward the {transfer.toward.value}"
    origin = bool(transfer.inputs) or transfer.source == view.state.server
    assert origin, f"{name} brings a model from nowhere: {transfer.source} is not the server"
    assert len(transfer.inputs) <= 1, f"{name} hands on {len(transfer.inputs)} models"
    used = transfer.get is not None or view.uses.get(i)
    assert used, f"{name} is for nothing: it answers no get and is not handed on"
