"""What a replica does with what cannot be right on its data port: cut off or refused, counted, and it follows on."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from mlfabric import wire
from mlfabric.channels import Frame, FrameKind
from mlfabric.protocol import GetId, TransferId, UpdateId
from mlfabric.transfer import offers
from mlfabric.v1 import data_pb2
from tests.fabric.harness import Fabric, Line, fabric, wait_until
from tests.fabric.replicas import RULES, Trainer, at_version, replica, trainers, wait_for_gate, wait_for_replica

STRANGE = UpdateId("stranger", 1, 0)


class Followed:
    """A primary that is trained, and its replica."""

    def __init__(self, running: Fabric, follower: Any, trainer: Trainer) -> None:
        self.running, self.follower, self.trainer = running, follower, trainer

    def connect(self) -> Line:
        line: Line = self.running.enter(Line(self.follower._service.address))
        return line

    @property
    def broken(self) -> float:
        found = self.follower._service._metrics.registry.get_sample_value("mlfabric_broken_connections_total")
        return found or 0.0

    def goes_on(self) -> None:
        """Train a step that the replica comes to hold."""
        before = at_version(self.running.servers[0])
        self.trainer.step()
        wait_for_replica(self.follower, before + 1)


@pytest.fixture(scope="module")
def followed() -> Iterator[Followed]:
    with (
        fabric() as running,
        trainers(running, RULES["plain"], 1) as (trainer,),
        replica(running.scheduler.address, div_max_updates=0) as follower,
    ):
        wait_for_gate(running.servers[0])
        yield Followed(running, follower, trainer)


def offer(line: Line, transfer: TransferId = STRANGE, size_bytes: int = 512, **fields: Any) -> None:
    meta = data_pb2.OfferMeta(transfer=wire.to_transfer_id(transfer), host="h", size_bytes=size_bytes, **fields)
    line.send(Frame(kind=FrameKind.OFFER, ticket=b"guessed".ljust(16), meta=meta.SerializeToString()))


def refusal(line: Line) -> str:
    frame = line.receive()
    assert frame is not None
    assert frame.kind is FrameKind.REFUSE
    return data_pb2.RefuseMeta.FromString(frame.meta).reason


def test_garbage_on_the_data_port_is_cut_off_and_counted(followed: Followed) -> None:
    before = followed.broken
    another_version = b"MLFB" + struct.pack("!HBB16sQQI", 99, 1, 0, bytes(16), 0, 0, 0)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 4, bytes(100), another_version):
        line = followed.connect()
        line.socket.sendall(garbage)
        assert line.is_closed()

    wait_until(lambda: followed.broken == before + 3, "all are counted")
    for frame in (
        Frame(kind=FrameKind.OUTCOME, ticket=bytes(16)),
        Frame(kind=FrameKind.OFFER, ticket=bytes(16), meta=b"\xff\xff"),
        Frame(kind=FrameKind.PAYLOAD, ticket=bytes(16), length=8),
        Frame(kind=FrameKind.REFUSE, ticket=bytes(16)),
    ):
        line = followed.connect()
        line.send(frame, bytes(frame.length))
        assert line.is_closed(), frame.kind
    line = followed.connect()
    offer(line, image=bytes(8))
    assert line.is_closed(), "its image has another length"
    followed.goes_on()


def test_an_offer_that_nobody_announced_and_a_want_are_refused(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "EARLY_WAIT_NS", 10_000_000)
    line = followed.connect()
    offer(line)

    assert "never announced" in refusal(line)
    line = followed.connect()
    want = data_pb2.WantMeta(get=wire.to_get_id(GetId("stranger", 1, 0)), host="h")
    line.send(Frame(kind=FrameKind.WANT, ticket=bytes(16), meta=want.SerializeToString()))
    assert "replica" in refusal(line)
    followed.goes_on()
