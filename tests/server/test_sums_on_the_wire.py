"""Sums over real sockets: a server that is told by hand what to expect, and offers as an aggregator makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mlfabric import ServerOptions, wire
from mlfabric.channels import Frame, FrameKind
from mlfabric.model.specs import Layout, ModelSpec, RuleSpec, TensorSpec
from mlfabric.protocol import (
    Commit,
    Instruction,
    Outcome,
    SumId,
    TransferId,
    UpdateId,
    UpdateKind,
    Void,
)
from mlfabric.server.callbacks import ModelView
from mlfabric.server.service import ServerService
from mlfabric.shell.background import Background
from mlfabric.telemetry import ServerMetrics
from mlfabric.v1 import data_pb2
from tests.fabric.harness import Line, wait_until
from tests.server.stage import committed, expect, expect_sum, hosted, member, update

A, B, C = (update(name) for name in "abc")
S = SumId(1, 0)
TICKET = b"t" * 16


class Stand:
    """A server whose scheduler is the test."""

    def __init__(self, service: ServerService, server: Background) -> None:
        self.server, self._service = server, service
        self.commits: list[tuple[str, int, int, float]] = []
        service.callbacks.of_updates.append(self._committed)
        self.lines: list[Line] = []

    def _committed(self, _: str, commit: Commit, view: ModelView) -> None:
        """Note whose update was committed as which version, and the version and weight that its callback may read."""
        seen = (view.version.number, float(view.tensors["w"][0]))
        self.commits.append((commit.update.worker, commit.version.number, *seen))

    def tell(self, *instructions: Instruction) -> None:
        for instruction in instructions:
            self.server._loop.call_soon_threadsafe(partial(self._service._instructed, instruction))

    def line(self) -> Line:
        address = wait_until(lambda: self._service.address, "the server listens")
        self.lines.append(Line(address))
        return self.lines[-1]

    def offer(self, layout: Layout, transfer: TransferId, image: bytes, *, inline: bool = False) -> Line:
        """Offer a transfer; return its line."""
        meta = data_pb2.OfferMeta(
            transfer=wire.to_transfer_id(transfer), size_bytes=len(image), host="h", image=image if inline else b""
        )
        line = self.line()
        line.send(Frame(kind=FrameKind.OFFER, ticket=TICKET, digest=layout.digest, meta=meta.SerializeToString()))
        return line

    def bring(self, layout: Layout, transfer: TransferId, image: bytes) -> Line:
        """Offer a transfer, wait for the grant, send it and its seal."""
        line = self.offer(layout, transfer, image)
        grant = line.receive()
        assert grant is not None
        assert grant.kind is FrameKind.GRANT
        payload = Frame(kind=FrameKind.PAYLOAD, ticket=TICKET, length=len(image), digest=layout.digest)
        line.send(payload, image)
        line.send(Frame(kind=FrameKind.PAYLOAD, ticket=TICKET))
        return line

    def received(self, kind: str) -> float | None:
        """Return how many transfers of this kind the metrics page counts."""
        registry = self._service._metrics.registry
        return registry.get_sample_value("mlfabric_received_total", {"model": "net", "kind": kind})

    @property
    def weight(self) -> float:
        store = self._service._stores.store("net")
        with store.standing() as snapshot:
            return float(snapshot.model["w"][0])


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    options, metrics = ServerOptions(scheduler="127.0.0.1:1", name="s", checkpoint_dir=tmp_path), ServerMetrics()
    service = ServerService(options, metrics)

    async def run(stop: asyncio.Event, joined: Callable[[], None]) -> None:
        joined()  # it waits for no scheduler
        await service.run(stop)

    with Background(options, run, metrics.registry, None) as server:
        stand = Stand(service, server)
        yield stand
        for line in stand.lines:
            line.socket.close()


def outcomes(line: Line) -> dict[UpdateId, Outcome]:
    frame = line.receive()
    assert frame is not None
    assert frame.kind is FrameKind.OUTCOME
    return wire.from_outcomes(data_pb2.OutcomeMeta.FromString(frame.meta))


def begin(stand: Stand, elements: int = 8, **fields) -> ModelSpec:
    """Give the server a model of ones."""
    layout = Layout((TensorSpec(name="w", shape=(elements,), dtype="float64"),))
    spec = ModelSpec(name="net", layout=layout, rule=RuleSpec(lr=0.5, **fields.pop("rule", {})), **fields)
    first = update("first")
    order = expect(first, 0, ticket=TICKET, kind=UpdateKind.INITIAL, size_bytes=layout.size_bytes)
    stand.tell(hosted(spec), order)
    outcomes(stand.bring(layout, first, full(layout, 1.0)))
    return spec


def full(layout: Layout, *values: float) -> bytes:
    count = layout.size_bytes // 8
    return np.concatenate([np.full(count, value) for value in values]).tobytes()


def sum_order(spec: ModelSpec, images: int = 1, **fields):
    order = expect_sum(S, 1, member(A), member(B), size_bytes=images * spec.layout.size_bytes, **fields)
    return replace(order, ticket=TICKET)


@pytest.mark.parametrize("elements", [8, 200_000])
def test_a_sum_is_applied_as_its_members_steps_and_answered_for_each(stand: Stand, elements: int, tmp_path: Path):
    spec = begin(stand, elements, rule={"momentum": 0.5})
    stand.tell(sum_order(spec, images=2))
    line = stand.bring(spec.layout, S, full(spec.layout, 0.25, 0.5))
    assert outcomes(line) == {A: committed(1), B: committed(2, tau=1)}
    assert stand.weight == 1.25
    assert stand.commits == [("a", 1, 2, 1.25), ("b", 2, 2, 1.25)]
    assert stand.received("sum") == 1
    assert stand.received("update") == 1
    [logged] = (tmp_path / "net.commits.jsonl").read_text().splitlines()
    assert '"version": 2, "updates": [["a", 1, 0], ["b", 1, 0]], "tau": [0, 1], "lr": [0.1, 0.1]' in logged


def test_a_small_sum_comes_with_its_offer(stand: Stand):
    spec = begin(stand)
    stand.tell(sum_order(spec))
    line = stand.offer(spec.layout, S, full(spec.layout, -0.5), inline=True)
    assert outcomes(line) == {A: committed(1), B: committed(2, tau=1)}
    assert stand.weight == 0.5


@pytest.mark.parametrize(
    ("tau_max", "value", "words"), [(0, 1.0, b"delay 1 is above the bound 0"), (4, float("inf"), b"w NaN or Inf")]
)
def test_a_sum_that_may_not_be_applied_is_refused_and_changes_nothing(
    stand: Stand, tau_max: int, value: float, words: bytes
):
    spec = begin(stand)
    stand.tell(sum_order(spec, tau_max=tau_max))
    refusal = stand.bring(spec.layout, S, full(spec.layout, value)).receive()
    assert refusal is not None
    assert refusal.kind is FrameKind.REFUSE
    assert words in refusal.meta
    assert stand.weight == 1.0


def test_a_voided_sum_loses_its_connection(stand: Stand):
    spec = begin(stand)
    stand.tell(sum_order(spec))
    line = stand.offer(spec.layout, S, full(spec.layout, 1.0))
    assert line.receive() is not None
    stand.tell(Void(to="s", model="net", transfer=S, reason="overdue"))
    assert line.is_closed()
