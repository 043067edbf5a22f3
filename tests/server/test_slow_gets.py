"""A real server beside a worker that reads its model slowly: nobody else waits, and the slow one gets one version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlfabric import ServerOptions, Worker
from mlfabric.channels import Frame, FrameKind
from mlfabric.errors import UsageError
from mlfabric.model.specs import RuleSpec
from mlfabric.protocol import GetId, GetRequested, ModelVersion
from mlfabric.v1 import data_pb2, types_pb2
from tests.fabric.harness import Fabric, Line, RawWorker, fabric, wait_until

SIZE = 4 << 20  # elements: more bytes than the kernel takes in for who does not read


def big_model() -> torch.nn.Linear:
    model = torch.nn.Linear(1, SIZE, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return model


def begin_get(raw: RawWorker, counter: int) -> tuple[Line, int]:
    """Ask for the model and read no more than the head of what comes; return how many bytes are to follow."""
    get = GetId(raw.name, raw.incarnation, counter)
    raw.tell(GetRequested(get=get, model="model", min_version=ModelVersion(1, 0)))
    fetch = raw.told("fetch")
    line = raw.connect(fetch.address)
    meta = data_pb2.WantMeta(get=types_pb2.RequestId(worker=get.worker, incarnation=1, counter=counter), host="raw")
    line.send(Frame(kind=FrameKind.WANT, ticket=fetch.ticket, meta=meta.SerializeToString()))
    frame = line.receive()
    assert frame is not None
    assert frame.kind is FrameKind.MODEL
    return line, frame.length


def read_rest(line: Line, length: int) -> np.ndarray:
    parts, left = [], length
    while left:
        part = line.socket.recv(min(left, 1 << 20))
        assert part
        parts.append(part)
        left -= len(part)
    return np.frombuffer(b"".join(parts), dtype=np.float32)


def push_ones(worker: Worker, model: torch.nn.Linear) -> None:
    model.weight.grad = torch.full_like(model.weight, -1.0)
    worker.push().result(20)


def memory_of(running: Fabric) -> dict[str, int]:
    [server] = [m for m in running.status().members if m.role == "server"]
    return dict(server.memory_bytes)


def test_gets_and_commits_go_on_beside_slow_gets_and_each_slow_one_is_of_one_version() -> None:
    with fabric(weight_copies=3) as running:
        model = big_model()
        worker = running.worker(model, "fast", rule=RuleSpec(lr=1.0))
        worker.get()
        raw = running.raw_worker(model, "slow", rule=RuleSpec(lr=1.0))
        slow = []
        for version in range(3):
            slow.append(begin_get(raw, version))
            push_ones(worker, model)
            assert worker.get(min_version=version + 1).number == version + 1
            assert torch.equal(model.weight.detach(), torch.full_like(model.weight, version + 1))
        wait_until(
            lambda: memory_of(running).get("copies") == 2 * 4 * SIZE, "the status says how many copies there are"
        )
        for version, (line, length) in enumerate(slow):
            assert np.array_equal(read_rest(line, length), np.full(SIZE, version, dtype=np.float32))
        wait_until(lambda: not memory_of(running).get("copies"), "the copies are given back")


def test_without_a_copy_left_a_get_waits_and_the_status_says_so() -> None:
    with fabric(weight_copies=0) as running:
        model = big_model()
        worker = running.worker(model, "fast", rule=RuleSpec(lr=1.0))
        worker.get()
        raw = running.raw_worker(model, "slow", rule=RuleSpec(lr=1.0))
        line, length = begin_get(raw, 0)
        push_ones(worker, model)
        wait_until(lambda: memory_of(running).get("lacking") == 4 * SIZE, "a get lacks a copy")
        read_rest(line, length)
        assert worker.get().number == 1
        wait_until(lambda: not memory_of(running).get("lacking"), "nothing lacks")


def test_a_number_of_copies_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match=r"weight_copies=-1; allowed: 0 .* or more"):
        ServerOptions(scheduler="localhost:1", weight_copies=-1)
