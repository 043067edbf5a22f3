"""The data ports of servers and aggregators, with what anybody could send, also one who was told a ticket."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlfabric
from mlfabric.protocol import DropReason, TransferEnd, TransferEnded
from tests.aggregator.by_hand import TINY, Stand, a_good_sum_is_made, order, takes
from tests.aggregator.stage import ticket, update
from tests.fabric.harness import PATIENCE_S, fabric, gradients, small_model

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
            raw.tell(
                TransferEnded(
                    member="raw",
                    model=raw.spec.name,
                    transfer=asked.update,
                    end=TransferEnd.DISCARDED,
                    cause=DropReason.CHANGED,
                    detail="given up",
                )
            )

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


@settings(max_examples=40)
@given(seeds=seeds)
def test_whatever_comes_to_a_server_other_workers_go_on(server: tuple[Attack, Check], seeds: list[int]) -> None:
    attack, check = server
    for seed in seeds:
        attack(random.Random(seed))
    check()


@settings(max_examples=40)
@given(seeds=seeds)
def test_whatever_comes_to_an_aggregator_other_sums_are_made(
    aggregator: tuple[Attack, Check], seeds: list[int]
) -> None:
    attack, check = aggregator
    for seed in seeds:
        attack(random.Random(seed))
    check()
