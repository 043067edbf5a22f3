"""The scheduler under TLS: who is let in as what, what is kept from others, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

import mlfabric
from mlfabric import Committed, wire
from mlfabric.channels import TcpOptions
from mlfabric.errors import RefusedError
from mlfabric.model.specs import Role, Term
from mlfabric.protocol import GetId, GetRequested, ModelVersion, WorkerHolds
from mlfabric.security import ROLES, Identity, Security
from mlfabric.security.authority import certify
from mlfabric.v1 import fabric_pb2 as pb
from tests.fabric.harness import Fabric, by_word, fabric, small_model, spec_of, wait_until
from tests.security.conftest import Caller, worker_settings


def joins(stub: Any, role: str, name: str, model: str = "model", **fields: Any) -> Any:
    """Register a member by its word alone."""
    if role == "worker":
        fields["model"] = wire.to_spec(spec_of(small_model(), model))
    if role == "replica":
        fields["server"] = "server-0"
    return by_word(stub, Role(role), name, **fields)


JOINING = ("worker", "server", "aggregator", "monitor", "replica")
NEEDED = {"replica": "server"}


def names(stub: Any) -> set[str]:
    return {m.name for m in stub.GetStatus(pb.GetStatusRequest()).members}


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Return the status that a call ends with, which is not OK."""
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error: Any = refused.value
    return error.code(), error.details()


@pytest.mark.parametrize(("held", "role"), [(h, r) for h in ROLES for r in JOINING if h != NEEDED.get(r, r)])
def test_who_joins_as_something_else_than_its_certificate_says_is_refused(
    secured: Fabric, certificates: Path, held: str, role: str
) -> None:
    with Caller(secured.scheduler.address, certificates / held) as stub:
        before = names(stub)
        code, detail = refusal(lambda: joins(stub, role, "intruder"))
        assert names(stub) == before
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert f"the certificate is that of a {held}; to join as {role}" in detail


@pytest.mark.parametrize("role", JOINING)
def test_who_has_the_right_one_may_join(secured: Fabric, certificates: Path, role: str) -> None:
    folder = certificates / NEEDED.get(role, role)
    with Caller(secured.scheduler.address, folder) as stub:
        assert joins(stub, role, f"good-{role}").admission.session_token


def test_a_job_cannot_touch_another_one_s_model_nor_take_another_name(secured: Fabric, certificates: Path) -> None:
    own = certify(certificates, Identity(role="worker", job="mine", name="w7"), days=1)
    with Caller(secured.scheduler.address, own) as stub:
        before = names(stub)
        assert "does not allow model 'theirs'" in refusal(lambda: joins(stub, "worker", "w7", "theirs"))[1]
        assert "does not allow the name 'w8'" in refusal(lambda: joins(stub, "worker", "w8", "mine"))[1]
        assert names(stub) == before
        joins(stub, "worker", "w7", "mine")


def test_a_replica_takes_its_server_s_name_and_nobody_else_can(certificates: Path) -> None:
    own = certify(certificates, Identity(role="server", name="heir"), days=1)
    other = certify(certificates, Identity(role="server", name="other"), days=1)

    def takes(stub: Any, promoted: str, token: bytes = b"") -> Any:
        return joins(stub, "server", "dead", promoted=promoted, succeeds="heir", promoted_token=token)

    with Fabric(security=Security.of(certificates, "scheduler")) as running:
        with Caller(running.scheduler.address, other) as stub:
            code, detail = refusal(lambda: takes(stub, "heir"))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "does not allow the place of replica 'heir'" in detail
        with Caller(running.scheduler.address, certificates / "server") as stub:
            joins(stub, "server", "server-0")
        with Caller(running.scheduler.address, own) as stub:
            assert "does not allow the name 'dead'" in refusal(lambda: joins(stub, "server", "dead"))[1]
            token = joins(stub, "replica", "heir").admission.session_token
            assert refusal(lambda: takes(stub, "heir"))[0] is grpc.StatusCode.FAILED_PRECONDITION
            assert refusal(lambda: takes(stub, "heir", token))[0] is grpc.StatusCode.ABORTED  # it was not told to
        with Caller(running.scheduler.address, certificates / "server") as stub:
            code, detail = refusal(lambda: takes(stub, "heir", token))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "and nobody else" in detail
        with Caller(
            running.scheduler.address, own
        ) as stub:  # a scheduler that begins anew has not told it, but knows none
            assert takes(stub, "").admission.session_token


@pytest.mark.parametrize("bad", ["foreign", "expired", None])
def test_callers_without_a_good_certificate_reach_nothing(
    secured: Fabric, certificates: Path, bad: str | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = None
    if bad is not None:
        own = request.getfixturevalue(bad) / "server"
        for name, source in (("ca.pem", certificates), ("cert.pem", own), ("key.pem", own)):
            (tmp_path / name).write_bytes((source / name).read_bytes())
        folder = tmp_path
    with Caller(secured.scheduler.address, folder) as stub:
        for call in (lambda: joins(stub, "server", "intruder"), lambda: stub.GetStatus(pb.GetStatusRequest())):
            assert refusal(call)[0] is grpc.StatusCode.UNAVAILABLE
    with Caller(secured.scheduler.address, certificates / "client") as stub:
        assert "intruder" not in names(stub)


def test_a_worker_of_another_authority_is_told_whose_certificate_is_no_good(secured: Fabric, foreign: Path) -> None:
    with pytest.raises(RefusedError, match="the other end's certificate is no good: another authority made it"):
        mlfabric.register_as_worker(
            small_model(), settings=worker_settings(secured.scheduler.address, "stranger", foreign)
        )


def test_a_plain_worker_is_told_to_take_tls(secured: Fabric) -> None:
    with pytest.raises(RefusedError, match=r"cannot join .*: it takes TLS only; give --tls DIR"):
        mlfabric.register_as_worker(small_model(), settings=worker_settings(secured.scheduler.address, "plain", None))


def test_a_worker_under_tls_is_told_that_the_scheduler_is_not(certificates: Path) -> None:
    with Fabric() as plain, pytest.raises(RefusedError, match=r"the other end does not speak TLS"):
        mlfabric.register_as_worker(
            small_model(), settings=worker_settings(plain.scheduler.address, "careful", certificates)
        )


def test_who_answers_with_a_worker_s_certificate_is_not_taken_for_the_scheduler(
    certificates: Path, tmp_path: Path
) -> None:
    settings = worker_settings("127.0.0.1:1", "unwary", certificates)
    false = replace(Security.of(certificates, "worker"))
    with Fabric(security=false) as impostor, pytest.raises(RefusedError, match="a worker, and no scheduler"):
        mlfabric.register_as_worker(small_model(), settings=replace(settings, scheduler=impostor.scheduler.address))


def test_a_token_is_good_with_its_own_certificate_only(secured: Fabric, certificates: Path) -> None:
    thief = certify(certificates, Identity(role="worker", name="thief"), days=1)
    with Caller(secured.scheduler.address, certificates / "worker") as stub:
        token = joins(stub, "worker", "robbed", "robbed-model").admission.session_token
    hello = pb.SessionRequest(member="robbed", incarnation=1, session_token=token)
    with Caller(secured.scheduler.address, thief) as stub:
        code, detail = refusal(lambda: list(stub.Session(iter([hello]))))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "no registration of 'robbed' under this token" in detail


def test_who_can_be_no_member_ends_no_scheduler(secured: Fabric, certificates: Path) -> None:
    newer = pb.ShowTermRequest(seen=wire.to_term(Term(2**62, 0)))
    with Caller(secured.scheduler.address, certificates / "client") as stub:
        code, detail = refusal(lambda: stub.ShowTerm(newer))
        names(stub)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "and no member" in detail


@pytest.fixture
def two_models() -> Iterator[tuple[Fabric, Any]]:
    """A fabric, and a worker that is played by hand; another one trains another model there."""
    with fabric() as running:
        running.worker(small_model(), "theirs", model_name="theirs").get()
        yield running, running.raw_worker(small_model(), "mine")


@pytest.mark.parametrize("kind", ["push", "get", "holds"])
def test_a_worker_s_events_name_its_own_model_only(two_models: tuple[Fabric, Any], kind: str) -> None:
    running, raw = two_models
    push = raw.request(model="theirs")
    get = GetRequested(get=GetId("mine", 1, 0), model="theirs", min_version=ModelVersion(0, 0))
    raw.tell({"push": push, "get": get, "holds": WorkerHolds(worker="mine", pushes=(push,), gets=())}[kind])
    assert raw.told("send", "drop", "fetch") is None
    wait_until(lambda: raw.error is not None, "the stream ends with an error")
    assert raw.error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "'mine' speaks of model 'theirs'; allowed: its own, and it trains 'model'" in raw.error.details()
    (theirs,) = (model for model in running.status().models if model.name == "theirs")
    assert (theirs.committed, theirs.dropped) == (0, 0)


def test_a_model_is_trained_with_an_aggregator_under_tls_and_has_every_update(certificates: Path) -> None:
    secured = {role: Security.of(certificates, role) for role in ROLES}
    with Fabric(security=secured["scheduler"]) as running:
        running.server(tcp=TcpOptions(security=secured["server"]))
        running.aggregator(tcp=TcpOptions(security=secured["aggregator"]))
        models = [{"w": torch.zeros(50_000, requires_grad=True)} for _ in range(2)]
        workers = []
        for i, model in enumerate(models):
            settings = worker_settings(running.scheduler.address, f"w{i}", certificates)
            workers.append(mlfabric.register_as_worker(model, rule=mlfabric.RuleSpec(lr=1.0), settings=settings))
        for step in range(3):
            handles = []
            for worker, model in zip(workers, models, strict=True):
                worker.get()
                model["w"].grad = torch.full((50_000,), -float(step + 1))
                handles.append(worker.push())
            assert all(isinstance(handle.result(30), Committed) for handle in handles)
        workers[0].get(min_version=6)
        assert torch.equal(models[0]["w"], torch.full((50_000,), 12.0))
        with Caller(running.scheduler.address, certificates / "client") as stub:
            (model_status,) = stub.GetStatus(pb.GetStatusRequest()).models
        for worker in workers:
            worker.leave()
    assert (model_status.committed, model_status.dropped) == (6, 0)
