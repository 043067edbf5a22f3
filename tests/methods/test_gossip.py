"""Gossip: when rounds of models begin, who averages with whom, and by which trees."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.methods import Late, round_rule_of
from mlfabric.methods.gossip import Groups, Neighbours, shape_gossip
from mlfabric.methods.teams import Link
from mlfabric.model.specs import Method, ModelSpec, RoundOptions
from tests.methods.test_round_rules import LAYOUT, MS, USUAL_NS, who

GOSSIP = [method for method in Method if method.is_gossip]


def spec(method: Method, **options: Any) -> ModelSpec:
    return ModelSpec(name="net", layout=LAYOUT, method=method, rounds=RoundOptions(**options))


@pytest.mark.parametrize("method", [Method.DPSGD, Method.RAND, Method.D1D])
def test_rounds_of_all_wait_for_everybody(method: Method) -> None:
    rule = round_rule_of(spec(method))
    assert rule.begins_ns(who(3, (0,)), 5) is None
    assert rule.begins_ns(who(3), 5) == 5


def test_pairs_are_made_once_half_are_ready_or_a_usual_step_has_passed() -> None:
    rule = round_rule_of(spec(Method.ADPSGD))
    assert rule.begins_ns(who(1, (0,)), 5) is None, "a pair needs two"
    assert rule.begins_ns(who(2, (0, 0)), 5) == 5
    assert rule.begins_ns(who(2, (0, 0, 0)), 5) == USUAL_NS
    assert rule.begins_ns(who(2, (0, 0, 0)), 200 * MS) == 200 * MS
    assert rule.begins_ns(who(1), 5) == 5, "it is alone"


def test_a_round_that_averages_all_waits_for_all_even_where_pairs_are_made() -> None:
    rule = round_rule_of(spec(Method.ADPSGD, average_every=4))
    assert rule.begins_ns(who(2, (0,), version=4), 5) is None
    assert rule.begins_ns(who(2, (0,), version=5), 5) == 5


@pytest.mark.parametrize("method", GOSSIP)
def test_no_model_is_ever_too_late(method: Method) -> None:
    rule = round_rule_of(spec(method))
    assert rule.late(10_000, 10_000) is Late.JOINS
    assert rule.most_waiting > 10**9


@given(st.sampled_from(GOSSIP), st.integers(1, 20), st.integers(1, 100), st.sampled_from(["ring", "exponential"]))
def test_what_each_model_gives_away_adds_up_to_one(method: Method, workers: int, version: int, mixing: str) -> None:
    names = [f"w{i:02}" for i in range(workers)]
    groups = Neighbours(spec(method, mixing=mixing)).groups(names, version)
    if groups is None:
        assert method is Method.D1D or workers == 1
        return
    given_away = dict.fromkeys(names, 0.0)
    for worker, group in groups.of.items():
        assert worker in group
        for other in group:
            given_away[other] += 1 / len(group)
    assert all(abs(share - 1) < 1e-9 for share in given_away.values())


def test_every_so_many_rounds_all_get_the_mean_of_all() -> None:
    neighbours = Neighbours(spec(Method.RAND, average_every=3))
    assert [neighbours.groups(["a", "b", "c", "d"], version) is None for version in (1, 2, 3, 4, 6)] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_each_has_a_tree_of_its_own_from_its_neighbours() -> None:
    shaped = shape_gossip(Groups({"a": ["a", "b"], "b": ["a", "b", "c"], "c": ["b", "c"]}), 64)
    assert [(tree.root, dict(tree.parents), tree.start, tree.end) for tree in shaped.trees] == [
        ("a", {"b": "a"}, 0, 64),
        ("b", {"a": "b", "c": "b"}, 0, 64),
        ("c", {"b": "c"}, 0, 64),
    ]
    assert shaped.summed == {"a": 2, "b": 3, "c": 2}


def test_in_groups_one_collects_and_another_one_gives_the_sum_to_the_rest() -> None:
    links = {"a": Link(1.0, 10.0), "b": Link(10.0, 1.0), "c": Link(1.0, 1.0), "d": Link(1.0, 1.0)}
    groups = Neighbours(spec(Method.RAND_AWARE)).groups(list(links), 1, links)
    assert groups is not None
    shaped = shape_gossip(groups, 64)
    (tree,) = shaped.trees
    assert (tree.root, tree.parents) == ("a", {"b": "a", "c": "a", "d": "a"})
    assert tree.sources == {"b": "a", "c": "b", "d": "b"}
    assert shaped.summed == dict.fromkeys(links, 4)
    assert shaped.planned_ns == 8 * 64 * 10**9, "a slow link carries one model"
