"""Attempts of all workers of a round, over loopback: everybody has the sum of all that was given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlfabric.channels import TcpChannel
from mlfabric.methods.all_reduce import Shaped, shape_round
from mlfabric.model.specs import Member, Role, Term
from mlfabric.network import Network
from mlfabric.planning import Shape
from mlfabric.protocol import RoundId
from mlfabric.scheduler.context import Context, NumberMaker, SchedulerConfig, TicketMaker
from mlfabric.scheduler.records import MemberRecord, MemberState
from mlfabric.scheduler.rounds.round_parts import parts_of
from mlfabric.worker_daemon.attempts import Attempt, ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.round_lines import RoundLines

GIGABIT = 1_000_000_000
SECRET = bytes(16)
ROUND = RoundId(1, 1)


async def reduced(
    shares: Mapping[str, tuple[float, float]], receivers: set[str], elements: int, without: frozenset[Shape]
) -> dict[str, np.ndarray]:
    """Carry out a round among workers with these shares of a link; worker n gives its n-th power of two."""
    network = Network.star(GIGABIT)
    for worker, (up, down) in shares.items():
        network.add_host(f"h-{worker}", round(up * GIGABIT), round(down * GIGABIT))
    config = SchedulerConfig(term=Term(1, 1), ticket_secret=SECRET)
    context = Context(config, network, TicketMaker(SECRET), NumberMaker(1))
    hosts = {worker: f"h-{worker}" for worker in shares}
    shaped = shape_round(
        network,
        {worker: host for worker, host in hosts.items() if worker not in receivers},
        4 * elements,
        ROUND,
        0,
        without=without,
        receivers={worker: hosts[worker] for worker in receivers},
    )
    assert isinstance(shaped, Shaped), shaped
    lines = {}
    async with AsyncExitStack() as stack:
        for worker, host in hosts.items():
            channel = TcpChannel()
            stack.push_async_callback(channel.close)
            lines[worker] = RoundLines(channel)
            address = await channel.listen(lines[worker].serve)
            member = Member(name=worker, role=Role.WORKER, incarnation=1, host=host, address=address)
            context.members[worker] = MemberRecord(member=member, state=MemberState.HERE, since_ns=0)
        parts = parts_of(context, shaped.trees, hosts, ())
        results = {worker: np.zeros(padded_bytes(4 * elements), np.uint8) for worker in hosts}
        async with asyncio.TaskGroup() as group:
            for number, worker in enumerate(hosts):
                given = None if worker in receivers else np.full(elements, 2.0**number, np.float32)
                plan: Any = SimpleNamespace(parts=parts[worker])
                buffers = ReduceBuffers(
                    given=None if given is None else given.data.cast("B"),
                    result=results[worker].data,
                    dtype="float32",
                )
                attempt = Attempt(plan, buffers, lines[worker], hosts[worker], lambda record, other: None)
                group.create_task(attempt.run())
    return {worker: result.view(np.float32)[:elements] for worker, result in results.items()}


EVEN = dict.fromkeys("abcdef", (1.0, 1.0))
MIXED = {"a": (0.5, 1.0), "b": (1.0, 0.25), "c": (1.0, 1.0), "d": (0.5, 0.5), "e": (1.0, 1.0)}


@pytest.mark.parametrize("shares", [EVEN, MIXED, dict.fromkeys("ab", (1.0, 1.0))])
@pytest.mark.parametrize("elements", [1, 30_000, 250_001])
@pytest.mark.parametrize("receivers", ["", "b", "bde"])
async def test_everybody_has_the_sum_of_all_that_was_given(shares, elements, receivers) -> None:
    only = set(receivers) & set(shares)
    results = await reduced(shares, only, elements, frozenset())
    wanted = sum(2.0**number for number, worker in enumerate(shares) if worker not in only)
    for worker, result in results.items():
        assert np.all(result == wanted), (worker, result, wanted)


async def test_so_it_is_in_a_ring() -> None:
    results = await reduced(EVEN, set(), 250_001, frozenset(Shape) - {Shape.RING})
    for result in results.values():
        assert np.all(result == 63.0)
