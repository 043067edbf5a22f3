"""What a server does with a peer that asks and asks and takes in no answer: it reads no more than it answers."""

from __future__ import annotations

import contextlib
import socket

import mlfabric
from mlfabric.channels import Frame, FrameKind
from mlfabric.channels.frames import encode_header
from mlfabric.v1 import data_pb2, types_pb2
from tests.fabric.harness import PATIENCE_S, RawWorker, fabric, gradients, small_model
from tests.fuzzing.frames import no_faults
from tests.server.test_service import ask, sent

OFFERS = 50_000


def asked_again(raw: RawWorker, ticket: bytes) -> bytes:
    """Return the frame that offers an update whose outcome the server knows."""
    update = types_pb2.RequestId(worker=raw.name, incarnation=raw.incarnation, counter=0)
    transfer, size_bytes = types_pb2.TransferId(update=update), raw.spec.layout.size_bytes
    meta = data_pb2.OfferMeta(transfer=transfer, size_bytes=size_bytes, host="raw-host").SerializeToString()
    frame = Frame(kind=FrameKind.OFFER, ticket=ticket, digest=raw.spec.layout.digest, meta=meta)
    return encode_header(frame, paced=False) + meta


def test_who_takes_in_no_answer_is_read_no_further_and_others_go_on() -> None:
    with no_faults() as faults, fabric() as running:
        worker, raw = running.worker(small_model(), "steady"), running.raw_worker(small_model())
        worker.get()
        send = ask(raw)
        assert sent(raw, send, 0.5).committed.version.number == 1
        line = raw.connect(send.address)
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.socket.settimeout(1)
        with contextlib.suppress(TimeoutError):
            for _ in range(OFFERS):
                line.socket.sendall(asked_again(raw, send.ticket))
        served = running.servers[0]._service._connections._lines.values()
        assert max(len(one.running) for one in served) <= 1
        worker.get()
        gradients(worker._model)
        assert isinstance(worker.push().result(PATIENCE_S), mlfabric.Committed)
        assert not faults
