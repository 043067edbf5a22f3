"""The parameter server over real sockets: what it does with updates that are wrong, torn, late or not announced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlfabric import ServerOptions, register_as_server
from mlfabric.channels import Frame, FrameKind, TcpOptions
from mlfabric.errors import FabricError, UsageError
from mlfabric.model.specs import RuleSpec
from mlfabric.v1 import data_pb2, session_pb2
from tests.fabric.harness import Fabric, Line, RawWorker, fabric, small_model, wait_until


@pytest.fixture
def running():
    """A fabric with a worker that has brought the model, so that version 0 is there."""
    with fabric() as running:
        model = small_model()
        running.worker(model, "steady").get()
        yield running


@pytest.fixture
def raw(running: Fabric) -> RawWorker:
    return running.raw_worker(small_model())


def version_of(running: Fabric) -> int:
    return running.status().models[0].version.number


def ask(raw: RawWorker, **changes) -> session_pb2.Send:
    """Ask for a push and return the instruction to send."""
    raw.tell(raw.request(**changes))
    send: session_pb2.Send = raw.told("send")
    return send


def deliver(line: Line, send: session_pb2.Send, raw: RawWorker, payload: bytes, length: int | None = None) -> None:
    """Wait for the grant, send the payload and its seal."""
    grant = line.receive()
    assert grant is not None
    assert grant.kind is FrameKind.GRANT
    length = len(payload) if length is None else length
    digest = raw.spec.layout.digest
    line.send(Frame(kind=FrameKind.PAYLOAD, ticket=send.ticket, length=length, digest=digest), payload)


def seal(line: Line, send: session_pb2.Send) -> None:
    line.send(Frame(kind=FrameKind.PAYLOAD, ticket=send.ticket))


def outcome(line: Line) -> session_pb2.Outcome:
    frame = line.receive()
    assert frame is not None
    assert frame.kind is FrameKind.OUTCOME
    [only] = data_pb2.OutcomeMeta.FromString(frame.meta).outcomes
    return only.outcome


def image(raw: RawWorker, value: float) -> bytes:
    return np.full(raw.spec.layout.size_bytes // 4, value, dtype=np.float32).tobytes()


def sent(raw: RawWorker, send: session_pb2.Send, value: float) -> session_pb2.Outcome:
    """Send an update whose elements all have one value; return what became of it."""
    line = raw.offer(send)
    deliver(line, send, raw, image(raw, value))
    seal(line, send)
    return outcome(line)


def a_good_update_commits(raw: RawWorker) -> None:
    assert sent(raw, ask(raw), 0.5).committed.version.number > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_update_that_is_not_finite_is_dropped_and_changes_nothing(
    raw: RawWorker, running: Fabric, value: float
) -> None:
    assert sent(raw, ask(raw), value).dropped.cause == session_pb2.DROP_CAUSE_NOT_FINITE
    assert version_of(running) == 0
    a_good_update_commits(raw)


def test_a_step_that_overflows_is_dropped_though_its_gradient_is_finite() -> None:
    most = float(np.finfo(np.float32).max)
    with fabric() as running:
        running.worker(small_model(), "steady", rule=RuleSpec(lr=1.0)).get()
        raw = running.raw_worker(small_model(), rule=RuleSpec(lr=1.0))
        causes = [sent(raw, ask(raw), -0.9 * most).dropped.cause for _ in range(2)]
        assert causes == [session_pb2.DROP_CAUSE_UNSPECIFIED, session_pb2.DROP_CAUSE_NOT_FINITE]
        assert version_of(running) == 1


@pytest.mark.parametrize(("change", "said"), [({"size_bytes": 16}, "16 bytes"), ({"digest": 0xBAD}, "digest 0xbad")])
def test_an_offer_of_another_layout_is_dropped_and_says_so(
    raw: RawWorker, running: Fabric, change: dict[str, int], said: str
) -> None:
    dropped = outcome(raw.offer(ask(raw), **change)).dropped
    assert dropped.cause == session_pb2.DROP_CAUSE_WRONG_LAYOUT
    assert said in dropped.detail
    assert version_of(running) == 0


@pytest.mark.parametrize("change", [-16, 16])
def test_a_payload_of_another_length_than_granted_breaks_the_connection_only(
    raw: RawWorker, running: Fabric, change: int
) -> None:
    send = ask(raw)
    line = raw.offer(send)
    deliver(line, send, raw, b"", length=raw.spec.layout.size_bytes + change)
    assert line.is_closed()
    assert version_of(running) == 0
    a_good_update_commits(raw)


def test_an_update_cut_off_in_the_middle_is_applied_neither_wholly_nor_half(raw: RawWorker, running: Fabric) -> None:
    request = raw.request()
    raw.tell(request)
    send = raw.told("send")
    with raw.offer(send) as line:
        deliver(line, send, raw, image(raw, 1.0)[:100], length=raw.spec.layout.size_bytes)
    wait_until(lambda: running.status().models[0].in_flight == 0, "the server has reported the break")
    raw.tell(request)
    assert sent(raw, raw.told("send"), 1.0).committed.version.number == 1


def test_an_update_without_its_seal_is_not_applied(raw: RawWorker, running: Fabric) -> None:
    send = ask(raw)
    line = raw.offer(send)
    deliver(line, send, raw, image(raw, 1.0))
    meta = data_pb2.RefuseMeta(reason="changed").SerializeToString()
    line.send(Frame(kind=FrameKind.REFUSE, ticket=send.ticket, meta=meta))
    assert line.is_closed()
    assert version_of(running) == 0
    a_good_update_commits(raw)


def test_the_same_update_sent_twice_is_applied_once(raw: RawWorker, running: Fabric) -> None:
    request = raw.request()
    versions = []
    for _ in range(2):
        raw.tell(request)
        message = raw.told("send", "resolve")
        if isinstance(message, session_pb2.Send):
            versions.append(sent(raw, message, 0.5).committed.version.number)
            wait_until(lambda: version_of(running) == 1, "the scheduler has heard of the commit")
        else:
            versions.append(message.outcome.committed.version.number)
    assert versions == [1, 1]
    assert version_of(running) == 1


def test_a_data_port_in_use_is_said_plainly(running: Fabric) -> None:
    port = int(running.status().members[0].address.rpartition(":")[2])
    options = ServerOptions(scheduler=running.scheduler.address, name="other", tcp=TcpOptions(ports=(port, port)))
    with pytest.raises(UsageError, match=str(port)):
        register_as_server(options)


def test_resume_without_a_directory_is_refused() -> None:
    with pytest.raises(UsageError, match="resume needs checkpoint_dir"):
        ServerOptions(scheduler="127.0.0.1:1", resume=True)
    with pytest.raises(UsageError, match="checkpoint_every_s=0"):
        ServerOptions(scheduler="127.0.0.1:1", checkpoint_every_s=0)


def test_resume_from_a_damaged_checkpoint_says_which_and_changes_nothing(tmp_path: Path) -> None:
    with fabric(checkpoint_dir=tmp_path) as running:
        running.worker(small_model()).get()
    checkpoints = list(tmp_path.rglob("*.pt"))
    for checkpoint in checkpoints:
        checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    before = {p: p.read_bytes() for p in checkpoints}
    with pytest.raises(FabricError, match=str(tmp_path)):
        register_as_server(ServerOptions(scheduler="127.0.0.1:1", checkpoint_dir=tmp_path, resume=True))
    assert before
    assert {p: p.read_bytes() for p in checkpoints} == before
