"""The elastic rule over many rounds: workers whose steps vary make rounds of nearly all, never of halves in turn."""

from __future__ import annotations

import random
from collections import deque
from statistics import fmean

import pytest

from mlfabric.methods import Readiness, round_rule_of
from mlfabric.model.specs import Layout, Method, ModelSpec, RoundOptions, TensorSpec

SPEC = ModelSpec(
    name="net",
    layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)),
    method=Method.ELASTIC,
    rounds=RoundOptions(),
)
MS = 1_000_000
WORKERS, ROUNDS = 30, 60


def sizes_of_rounds(*, varies_by: float, round_ns: int) -> list[int]:
    """Return how many workers were in each round; half of them begin while the others are in the middle of a step."""
    drawn, rule = random.Random(1), round_rule_of(SPEC)
    began = {rank: 60 * MS * (rank % 2) for rank in range(WORKERS)}
    ready = {rank: at + _step_ns(drawn, varies_by) for rank, at in began.items()}
    now_ns, sizes = 0, list[int]()
    recent_ns = {str(rank): deque([100 * MS], maxlen=8) for rank in range(WORKERS)}
    settled_ns = 0
    while len(sizes) < ROUNDS:
        who = Readiness(
            ready_ns={str(rank): at for rank, at in ready.items() if at <= now_ns},
            computing_ns={str(rank): began[rank] for rank, at in ready.items() if at > now_ns},
            usual_ns=100 * MS,
            version=1 + len(sizes),
            since_full=0,
            recent_ns=recent_ns,
            settled_ns=settled_ns,
            round_ns=round_ns,
        )
        begins_ns = rule.begins_ns(who, now_ns) if who.ready_ns else None
        if begins_ns == now_ns:
            settled_ns = now_ns = now_ns + round_ns
            sizes.append(len(who.ready_ns))
            for name, ready_ns in who.ready_ns.items():
                recent_ns[name].append(ready_ns - began[int(name)])
                began[int(name)], ready[int(name)] = now_ns, now_ns + _step_ns(drawn, varies_by)
        else:
            soon = [at for at in (begins_ns, *ready.values()) if at is not None and at > now_ns]
            now_ns = min(soon)
    return sizes


def _step_ns(drawn: random.Random, varies_by: float) -> int:
    return round(100 * MS * max(0.3, drawn.gauss(1, varies_by)))


@pytest.mark.parametrize("round_ms", [20, 160, 320])
@pytest.mark.parametrize(("varies_by", "least"), [(0.0, 30), (0.05, 29), (0.1, 28), (0.2, 25)])
def test_halves_never_take_turns(round_ms: int, varies_by: float, least: int) -> None:
    assert fmean(sizes_of_rounds(varies_by=varies_by, round_ns=round_ms * MS)[5:]) >= least
