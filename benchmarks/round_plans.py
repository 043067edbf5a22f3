"""What it takes to plan a round of AllReduce, and what its workers are told of it; a part of ``bench planner``.

Rounds of 25 MB over links of 1 Gbit/s: all even; some at a half or a quarter, each direction by itself; and the same
with a tenth of the workers late. Timed is what the scheduler does: from what it knows of the links to each worker's
part. Times are CPU times of the one thread that plans.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from mlfabric import wire
from mlfabric.methods.all_reduce import Shaped, shape_round
from mlfabric.model.specs import Member, Role, Term
from mlfabric.network import Network
from mlfabric.protocol import Reduce, ReduceId, RoundId
from mlfabric.scheduler.context import Context, NumberMaker, SchedulerConfig, TicketMaker
from mlfabric.scheduler.records import MemberRecord, MemberState
from mlfabric.scheduler.rounds.round_parts import parts_of

__all__ = ["WORKERS", "rows"]

WORKERS = (30, 100, 300, 1000)
SIZE_BYTES = 25_000_000
FULL_BPS = 1_000_000_000
SHARES = (0.25, 0.5, 1.0, 1.0)
SECRET = bytes(32)


def rows(runs: int, workers: Sequence[int] = WORKERS) -> Iterator[dict[str, Any]]:
    """Measure rounds.

    Args:
        runs: of each; the fastest counts.
        workers: how many take part.

    Returns:
        For each ``workers``, ``links``, ``shape_ms`` (which trees), ``parts_ms`` (each worker's part), ``total_ms``;
        ``over_possible``, the planned time over what the links must take; the number of ``stripes``; ``most_streams``
        of a worker; and what is told to all, ``told_kb``, and to one at most, ``most_told_kb``.
    """
    for count in workers:
        for links in ("even", "mixed", "mixed, a tenth late"):
            yield _row(count, links, runs)


def _row(count: int, links: str, runs: int) -> dict[str, Any]:
    context, shares = _context(count, links)
    hosts = {name: record.member.host for name, record in context.members.items()}
    late = sorted(hosts)[: count // 10] if "late" in links else []
    shape_ms, parts_ms = [], []
    for number in range(runs):
        began = time.thread_time()
        shaped = _shaped(context.network, hosts, number, late)
        shaped_at = time.thread_time()
        parts = parts_of(context, shaped.trees, hosts, late)
        shape_ms.append((shaped_at - began) * 1e3)
        parts_ms.append((time.thread_time() - shaped_at) * 1e3)
    told = [
        Reduce(
            to=name,
            reduce=ReduceId(name, 1, 0),
            round=RoundId(1, 0),
            workers=count,
            parts=tuple(of),
            size_bytes=SIZE_BYTES,
            dtype="float32",
            reason="",
        )
        for name, of in parts.items()
    ]
    told_kb = [wire.to_instruction(one).ByteSize() / 1e3 for one in told]
    streams = [
        sum(len(part.inputs) + len(part.takers) + bool(part.parent) + bool(part.source) for part in one.parts)
        for one in told
    ]
    return {
        "workers": count,
        "links": links,
        "shape_ms": min(shape_ms),
        "parts_ms": min(parts_ms),
        "total_ms": min(map(sum, zip(shape_ms, parts_ms, strict=True))),
        "over_possible": _planned_s(shaped) / _possible_s(shares),
        "stripes": len(shaped.trees),
        "most_streams": max(streams),
        "told_kb": sum(told_kb),
        "most_told_kb": max(told_kb),
    }


def _shaped(network: Network, hosts: dict[str, str], number: int, late: Sequence[str]) -> Shaped:
    found = shape_round(network, hosts, SIZE_BYTES, RoundId(1, number), 0, late)
    assert isinstance(found, Shaped), found
    return found


def _context(count: int, links: str) -> tuple[Context, list[tuple[float, float]]]:
    """Return a scheduler's state with so many workers, and which shares of the full rate their links have."""
    rng, network = Random(count), Network.star(FULL_BPS)
    choices = (1.0,) if links == "even" else SHARES
    shares = [(rng.choice(choices), rng.choice(choices)) for _ in range(count)]
    context = Context(
        SchedulerConfig(term=Term(1, 1), ticket_secret=SECRET), network, TicketMaker(SECRET), NumberMaker(1)
    )
    for number, (up, down) in enumerate(shares):
        name, host = f"w{number}", f"h{number}"
        network.add_host(host, round(up * FULL_BPS), round(down * FULL_BPS))
        address = f"10.0.{number // 250}.{number % 250}:50061"
        member = Member(name=name, role=Role.WORKER, incarnation=1, host=host, address=address)
        context.members[name] = MemberRecord(member=member, state=MemberState.HERE, since_ns=0)
    return context, shares


def _planned_s(shaped: Shaped) -> float:
    """Return from when until when links are reserved."""
    profiles = [reserved.profile for reserved in shaped.transfers]
    return (max(profile.end_ns for profile in profiles) - min(profile.start_ns for profile in profiles)) / 1e9


def _possible_s(shares: Sequence[tuple[float, float]]) -> float:
    ups, downs = zip(*shares, strict=True)
    loads = 2 * (len(shares) - 1)
    least = max(1 / min(ups), 1 / min(downs), loads / sum(ups), loads / sum(downs))
    return float(least * SIZE_BYTES * 8 / FULL_BPS)
