"""When rounds without a server begin, and what becomes of gradients that are late."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mlfabric.errors import ConfigError
from mlfabric.methods import Late, Readiness, round_rule_of
from mlfabric.model.round_options import MOST_KEPT
from mlfabric.model.specs import Layout, Method, ModelSpec, RoundOptions, TensorSpec

LAYOUT = Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),))
MS = 1_000_000
USUAL_NS = 100 * MS


def rule(method: Method, **options: Any):
    return round_rule_of(ModelSpec(name="net", layout=LAYOUT, method=method, rounds=RoundOptions(**options)))


def who(ready: int, computing_ns: tuple[int, ...] = (), usual_ns: int | None = USUAL_NS, **fields: int) -> Readiness:
    """Return so many workers that are ready, and others that have computed since then."""
    return Readiness(
        ready_ns={f"r{i}": 0 for i in range(ready)},
        computing_ns={f"c{i}": since_ns for i, since_ns in enumerate(computing_ns)},
        usual_ns=usual_ns,
        version=fields.get("version", 1),
        since_full=fields.get("since_full", 0),
    )


def known(ready: int, computing_ns: tuple[int, ...], *took_ms: tuple[int, ...], **fields: Any) -> Readiness:
    """Return workers of which a round takes 50 ms, and those that compute once took so long for a step."""
    steps = {"recent_ns": {f"c{i}": [ms * MS for ms in each] for i, each in enumerate(took_ms)}, "round_ns": 50 * MS}
    return replace(who(ready, computing_ns), **{**steps, **fields})


def test_everybody_waits_for_everybody() -> None:
    together = rule(Method.ALL_REDUCE)
    assert together.begins_ns(who(3, (0,)), 5) is None
    assert together.begins_ns(who(3), 5) == 5
    assert together.late(1, 1) is Late.IS_DROPPED


def test_elastic_waits_for_a_worker_while_that_brings_more_gradients_a_second() -> None:
    elastic = rule(Method.ELASTIC)
    assert elastic.begins_ns(known(3, (0,), (100,)), 100 * MS) == 105 * MS
    assert elastic.begins_ns(known(3, (0,), (100,)), 106 * MS) == 106 * MS
    lately = known(3, (0, 90 * MS), (100,), (100,))
    assert elastic.begins_ns(lately, 100 * MS) == 105 * MS
    assert elastic.begins_ns(replace(lately, round_ns=900 * MS), 100 * MS) == 195 * MS


def test_elastic_waits_until_enough_are_ready_and_at_first_for_all() -> None:
    elastic = rule(Method.ELASTIC, at_least=0.75)
    assert elastic.begins_ns(who(2, (0, 0)), 200 * MS) == 1000 * MS
    assert elastic.begins_ns(known(3, (0,), (100,)), 200 * MS) == 200 * MS
    assert elastic.begins_ns(who(3, (0,), usual_ns=None), 200 * MS) is None
    assert elastic.begins_ns(known(3, (0,), (100,), round_ns=None), 200 * MS) == 1000 * MS
    assert rule(Method.ELASTIC, at_least=1.0).begins_ns(who(9, (0,)), 10**12) is None


@pytest.mark.parametrize("method", [Method.LOCAL_SGD, Method.DILOCO])
def test_the_first_round_of_movements_begins_once_enough_are_ready(method: Method) -> None:
    rounds = rule(method, at_least=0.75)
    assert rounds.begins_ns(known(2, (0, 0), round_ns=None), 200 * MS) == 1000 * MS
    assert rounds.begins_ns(known(3, (0,), (100,), round_ns=None), 200 * MS) == 200 * MS


def test_elastic_counts_workers_no_longer_that_are_lost_in_their_step() -> None:
    elastic = rule(Method.ELASTIC, at_least=0.75)
    assert elastic.begins_ns(who(2, (0, 0)), 1000 * MS) == 1000 * MS


@pytest.mark.parametrize("tau_max", [0, 2])
def test_elastic_lets_gradients_join_up_to_the_delay_bound(tau_max: int) -> None:
    elastic = rule(Method.ELASTIC, tau_max=tau_max)
    assert elastic.late(tau_max, 1) is Late.JOINS
    assert elastic.late(tau_max + 1, 1) is Late.IS_DROPPED


def test_elastic_has_a_late_gradient_replaced_where_there_is_time_for_that_and_local_steps_have_not() -> None:
    assert rule(Method.ELASTIC).late(1, 1, can_renew=True) is Late.IS_REPLACED
    assert rule(Method.ELASTIC).late(0, 1, can_renew=True) is Late.JOINS
    assert rule(Method.DILOCO).late(1, 1, can_renew=True) is Late.JOINS


def test_a_partial_round_begins_with_its_quorum() -> None:
    assert rule(Method.PARTIAL, quorum="solo").begins_ns(who(1, (0, 0, 0)), 5) == 5
    assert rule(Method.PARTIAL, quorum="2").begins_ns(who(1, (0, 0, 0)), 5) is None
    assert rule(Method.PARTIAL, quorum="2").begins_ns(who(2, (0, 0)), 5) == 5
    assert rule(Method.PARTIAL, quorum="full").begins_ns(who(3, (0,)), 5) is None


def test_a_late_gradient_is_kept_for_its_workers_next_one_unless_too_many_are_kept() -> None:
    partial = rule(Method.PARTIAL)
    assert partial.late(0, 1) is Late.JOINS
    assert {partial.late(delay, kept) for delay in (1, 9) for kept in range(1, MOST_KEPT)} == {Late.IS_KEPT}
    assert partial.late(9, MOST_KEPT) is Late.JOINS


def test_auto_waits_while_that_lets_more_workers_be_in_rounds_per_second() -> None:
    rounds = rule(Method.PARTIAL, quorum="auto")
    soon, late = known(3, (0,), (100,)), known(3, (0,), (400,))
    assert rounds.begins_ns(soon, 100 * MS) == 105 * MS
    assert rounds.begins_ns(late, 100 * MS) == 100 * MS
    assert rounds.begins_ns(known(3, (0, 0), (100,), (400,)), 100 * MS) == 105 * MS
    assert rounds.begins_ns(known(3, (0,) * 12, *((400,),) * 12), 100 * MS) == 420 * MS
    assert rounds.begins_ns(known(3, (0,), (100, 100, 100, 400)), 100 * MS) == 105 * MS
    assert rounds.begins_ns(known(9, (90 * MS,), (100,)), 100 * MS) == 100 * MS


def test_auto_waits_longer_where_rounds_take_longer() -> None:
    rounds = rule(Method.PARTIAL, quorum="auto")
    assert rounds.begins_ns(known(3, (0,), (200,)), 100 * MS) == 100 * MS
    assert rounds.begins_ns(known(3, (0,), (200,), round_ns=900 * MS), 100 * MS) == 210 * MS


def test_auto_does_not_wait_for_a_step_that_takes_longer_than_ever_and_at_first_waits_for_all() -> None:
    rounds = rule(Method.PARTIAL, quorum="auto", full_every=4)
    assert rounds.begins_ns(known(3, (0,), (100,)), 111 * MS) == 111 * MS
    assert rounds.begins_ns(known(3, (0, 0)), 200 * MS) is None
    assert rounds.begins_ns(known(3, (0,), (100,), round_ns=None), 200 * MS) is None
    assert rounds.begins_ns(known(3, (0,), (100,), since_full=4), 200 * MS) is None
    assert rounds.begins_ns(known(3, ()), 7) == 7


def test_auto_looks_at_one_step_of_each_worker_at_least() -> None:
    many = known(600, (0,) * 600, *((900, 100),) * 600)
    assert rule(Method.PARTIAL, quorum="auto").begins_ns(many, 100 * MS) == 105 * MS


def test_after_so_many_partial_rounds_one_waits_for_all() -> None:
    solo = rule(Method.PARTIAL, quorum="solo", full_every=3)
    assert solo.begins_ns(who(1, (0,), since_full=2), 5) == 5
    assert solo.begins_ns(who(1, (0,), since_full=3), 5) is None
    assert solo.begins_ns(who(2, since_full=3), 5) == 5


def test_the_worker_that_lets_a_round_of_the_majority_begin_is_drawn_evenly() -> None:
    """Chi-square over 8 workers and 4,000 rounds: above 24.3 once in a thousand draws of a fair choice."""
    majority = rule(Method.PARTIAL)
    drawn: Counter[int] = Counter()
    for version in range(4000):
        for worker in range(8):
            ready = {f"w{worker}": 0}
            computing = {f"w{i}": 0 for i in range(8) if i != worker}
            one = Readiness(
                ready_ns=ready,
                computing_ns=computing,
                usual_ns=None,
                version=version,
                since_full=0,
            )
            drawn[worker] += majority.begins_ns(one, 0) is not None
    assert sum(drawn.values()) == 4000
    assert sum((count - 500) ** 2 / 500 for count in drawn.values()) < 24.3


@pytest.mark.parametrize(
    ("options", "story"),
    [
        ({"tau_max": -1}, "tau_max=-1; allowed: 0 to 1000"),
        ({"at_least": 0.0}, "at_least=0.0; allowed: above 0"),
        ({"quorum": "most"}, "quorum='most'; allowed: solo, majority, full, auto, or a number"),
        ({"quorum": "0"}, "quorum='0'; allowed"),
        ({"full_every": 0}, "full_every=0; allowed: 1 to 1000"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], story: str) -> None:
    with pytest.raises(ConfigError, match=story):
        RoundOptions(**options)


def test_rounds_are_refused_with_a_server() -> None:
    with pytest.raises(ConfigError, match="rounds with method asynchronous; allowed: with methods without"):
        ModelSpec(name="net", layout=LAYOUT, rounds=RoundOptions())
