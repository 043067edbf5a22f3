"""The data ports of servers, replicas, aggregators and workers that reduce, with what anybody could send, also one who
was told a ticket.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mlfabric
from mlfabric.model.specs import Layout, ModelSpec, TensorSpec
from mlfabric.protocol import (
    DropReason,
    MemberLeft,
    ModelVersion,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.v1 import session_pb2
from mlfabric.worker_daemon import round_lines
from tests.aggregator.by_hand import TINY, Stand, a_good_sum_is_made, order, takes
from tests.aggregator.stage import ticket, update
from tests.fabric.harness import PATIENCE_S, Fabric, RawWorker, fabric, gradients, small_model, spec_of
from tests.fabric.replicas import RULES, at_version, replica, trainers, wait_for_gate, wait_for_replica

from .frames import no_faults, random_frames, send_all

NOBODY = "127.0.0.1:9"
Attack = Callable[[random.Random], None]
Check = Callable[[], None]
seeds = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Attack, Check]]:
    """A server, an honest worker, and one that is told tickets and then does with them what it likes."""
    with no_faults() as faults, fabric() as running:
        honest, raw = running.worker(small_model(), "honest"), running.raw_worker(small_model(), "raw")
        address = running.servers[0]._service.address
        honest.get()

        def attack(draw: random.Random) -> None:
            asked = raw.request()
            raw.tell(asked)
            told = raw.told("send", "drop")
            send_all(address, random_frames(draw, raw.spec, asked.update, getattr(told, "ticket", bytes(16))))
            raw.tell(given_up(asked.update, raw.spec.name))

        def check() -> None:
            honest.get()
            gradients(honest._model)
            assert isinstance(honest.push().result(PATIENCE_S), mlfabric.Committed)
            assert not faults

        yield attack, check


@pytest.fixture(scope="module")
def aggregator() -> Iterator[tuple[Attack, Check]]:
    """An aggregator that is told of a sum for every attack."""
    with no_faults() as faults, Stand() as stand:
        address = stand.aggregator()._service.address
        count = iter(range(1, 10**9))

        def attack(draw: random.Random) -> None:
            counter = next(count)
            wanted = update("raw", counter)
            inputs = [takes(one, size_bytes=TINY.layout.size_bytes) for one in (wanted, update("b", counter))]
            stand.scheduler.tell(order(stand, counter, *inputs, model=TINY.name, address=NOBODY))
            send_all(address, random_frames(draw, TINY, wanted, ticket(wanted)))

        def check() -> None:
            stand.listen_anew()
            a_good_sum_is_made(stand, next(count))
            assert not faults

        yield attack, check


@pytest.fixture(scope="module")
def follower() -> Iterator[tuple[Attack, Check]]:
    """A replica that has to have each update before it is committed, and a worker that is told tickets for it."""
    rule = RULES["plain"]
    with (
        no_faults() as faults,
        fabric() as running,
        trainers(running, rule, 1) as (trainer,),
        replica(running.scheduler.address, div_max_updates=0) as follower,
    ):
        wait_for_gate(running.servers[0])
        raw = running.raw_worker({"weights": trainer.weights}, "raw", rule=rule)

        def attack(draw: random.Random) -> None:
            asked = raw.request(computed_from=ModelVersion(1, at_version(running.servers[0])))
            raw.tell(asked)
            told = raw.told("replicate", "drop")
            address = follower._service.address
            send_all(address, random_frames(draw, raw.spec, asked.update, getattr(told, "ticket", bytes(16))))
            raw.tell(given_up(asked.update, raw.spec.name))

        def check() -> None:
            before = at_version(running.servers[0])
            assert isinstance(trainer.step(), mlfabric.Committed)
            wait_for_replica(follower, before + 1)
            assert not faults

        yield attack, check


def given_up(update: UpdateId, model: str) -> TransferEnded:
    """Return how the worker ``raw`` says that an update will not come."""
    end, cause = TransferEnd.DISCARDED, DropReason.CHANGED
    return TransferEnded(member="raw", model=model, transfer=update, end=end, cause=cause, detail="given up")


@pytest.fixture(scope="module")
def reducing() -> Iterator[tuple[Attack, Check]]:
    """Two workers that reduce, and a third one that is told whom to send what, and then does not play along."""
    with (
        no_faults() as faults,
        pytest.MonkeyPatch.context() as patch,
        Fabric() as running,
        ThreadPoolExecutor(2) as threads,
    ):
        patch.setattr(round_lines, "EXPECTED_WITHIN_S", 0.1)
        tensors = {"w": torch.zeros(4, requires_grad=True)}
        job = replace(spec_of(tensors, "job"), method=mlfabric.Method.ALL_REDUCE)
        honest = [running.worker(tensors, name, model_name="job", method=mlfabric.Method.ALL_REDUCE) for name in "ab"]
        incarnations = iter(range(1, 10**9))

        def rounds(elements: int) -> list[Future[tuple[int, torch.Tensor]]]:
            return [threads.submit(_reduced, worker, torch.ones(elements)) for worker in honest]

        def attack(draw: random.Random) -> None:
            elements = draw.choice((1, 16, 16, 12_000))
            with RawWorker(running.scheduler.address, job, "raw", next(incarnations)) as raw:
                raw.member = replace(raw.member, address=NOBODY)
                raw.join()
                reduce = ReduceId("raw", raw.incarnation, 0)
                raw.tell(
                    ReduceRequested(
                        reduce=reduce,
                        model="job",
                        size_bytes=4 * elements,
                        dtype="float32",
                        op=ReduceOp.SUM,
                        together=3,
                    )
                )
                results = rounds(elements)
                for part in raw.told("reduce").parts:
                    _attack_part(draw, part, job)
                raw.tell(MemberLeft(name="raw", incarnation=raw.incarnation, detail="it has seen enough"))
                assert [found.result(PATIENCE_S)[0] for found in results] == [2, 2]

        def check() -> None:
            for found in rounds(16):
                workers, tensor = found.result(PATIENCE_S)
                assert (workers, tensor.tolist()) == (2, [2.0] * 16)
            assert not faults

        yield attack, check


def _reduced(worker: mlfabric.Worker, tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
    return worker.all_reduce(tensor), tensor


def _attack_part(draw: random.Random, part: session_pb2.ReducePart, job: ModelSpec) -> None:
    """Send something to those who expect this worker for one part of a round."""
    shape = ((part.end - part.start) // 4,)
    layout = Layout((TensorSpec(name=f"bytes {part.start} to {part.end}", shape=shape, dtype="float32"),))
    for peer in (part.parent, part.source):
        if peer.address:
            send_all(peer.address, random_frames(draw, replace(job, layout=layout), UpdateId("raw", 1, 0), peer.ticket))


@pytest.fixture(scope="module", params=["server", "aggregator", "follower", "reducing"])
def port(request: pytest.FixtureRequest) -> tuple[Attack, Check]:
    """How a data port is attacked, and how others see that it goes on."""
    found: tuple[Attack, Check] = request.getfixturevalue(request.param)
    return found


@settings(max_examples=40)
@given(seeds=seeds)
def test_whatever_comes_to_a_data_port_others_go_on(port: tuple[Attack, Check], seeds: list[int]) -> None:
    attack, check = port
    for seed in seeds:
        attack(random.Random(seed))
    check()
