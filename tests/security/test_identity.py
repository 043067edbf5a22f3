"""Who a certificate says somebody is, and what that allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Role
from mlfabric.security.identity import ROLES, Identity, identity_in

WORKER = Identity(role="worker")
OF_JOB = Identity(role="worker", job="resnet")
JOBS = st.text(min_size=1).filter(lambda job: ".shard" not in job)
NAMED = st.builds(Identity, role=st.sampled_from(ROLES), name=st.text())
IN_JOBS = st.builds(Identity, role=st.just("worker"), job=JOBS, name=st.text())


@given(identity=NAMED | IN_JOBS)
def test_a_uri_says_all_of_an_identity_and_nothing_in_it_can_be_taken_for_another_part(identity: Identity) -> None:
    assert Identity.parse(identity.uri) == identity
    assert identity.uri.isascii()
    assert not set(identity.uri) & set(" ,\"'\n\r#?;$\\")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("spiffe:///worker", "allowed: mlfabric://JOB/ROLE"),
        ("mlfabric://worker", "allowed: mlfabric://JOB/ROLE"),
        ("mlfabric:///worker/a/b", "allowed: mlfabric://JOB/ROLE"),
        ("mlfabric:///admin", "role 'admin' in a certificate; allowed: scheduler, server"),
        ("mlfabric://resnet/server", "job 'resnet' in the certificate of a server; allowed: in a worker's only"),
        ("mlfabric://resnet.shard0/worker", "so the parts of a model are called"),
    ],
)
def test_a_uri_that_says_something_else_is_refused(uri: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Identity.parse(uri)


@pytest.mark.parametrize("uris", [(), ("https://example.org",), (WORKER.uri, OF_JOB.uri)])
def test_a_certificate_names_exactly_one_member(uris: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="wanted: one URI"):
        identity_in(uris)


def test_other_uris_in_a_certificate_do_not_matter() -> None:
    assert identity_in(["spiffe://cluster/ns/training", OF_JOB.uri]) == OF_JOB


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("held", ROLES)
def test_who_joins_needs_the_certificate_of_that_role(held: str, role: Role) -> None:
    wanted = "server" if role is Role.REPLICA else role.value
    refusal = Identity(role=held).refusal(role, "anybody", "any-model")
    assert (refusal is None) == (held == wanted)
    assert refusal is None or refusal.endswith(f"takes that of a {wanted}")


@pytest.mark.parametrize(
    ("identity", "name", "model", "refused"),
    [
        (WORKER, "w", "any", None),
        (OF_JOB, "w", "resnet", None),
        (OF_JOB, "w", "lda", "of job 'resnet'; it does not allow model 'lda'"),
        (OF_JOB, "w", "resnet2", "does not allow model 'resnet2'"),
        (Identity(role="worker", name="w3"), "w3", "any", None),
        (Identity(role="worker", name="w3"), "w4", "any", "'w3'; it does not allow the name 'w4'"),
    ],
)
def test_a_job_allows_its_model_and_a_name_itself(
    identity: Identity, name: str, model: str, refused: str | None
) -> None:
    found = identity.refusal(Role.WORKER, name, model)
    assert (found is None) == (refused is None)
    assert refused is None or refused in str(found)


@pytest.mark.parametrize(
    ("own", "peer", "refused"),
    [
        (Identity(role="server"), OF_JOB, None),
        (OF_JOB, Identity(role="aggregator"), None),
        (OF_JOB, WORKER, None),
        (OF_JOB, Identity(role="worker", job="lda"), "worker of job 'lda', and this member's of job 'resnet'"),
        (Identity(role="server"), Identity(role="client"), "a client, which moves no tensors"),
        (OF_JOB, Identity(role="scheduler"), "a scheduler, which moves no tensors"),
    ],
)
def test_tensors_pass_between_members_and_not_between_jobs(own: Identity, peer: Identity, refused: str | None) -> None:
    found = own.stranger(peer)
    assert (found is None) == (refused is None)
    assert refused is None or refused in str(found)


@pytest.mark.parametrize(("name", "is_allowed"), [("", True), ("replica-0", True), ("server-0", False), ("x", False)])
def test_the_place_of_a_server_takes_the_certificate_of_the_replica_that_it_was(name: str, is_allowed: bool) -> None:
    found = Identity(role="server", name=name).refusal(Role.SERVER, "server-0", succeeds="replica-0")
    assert (found is None) == is_allowed


def test_no_other_role_than_a_server_s_takes_a_server_s_place() -> None:
    assert Identity(role="worker").refusal(Role.SERVER, "server-0", succeeds="worker") is not None
