"""How a shaped round becomes transfers: who waits for whom, what is spread out, what each worker carries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mlfabric.methods.all_reduce import Shaped
from mlfabric.methods.byte_trees import Trees
from mlfabric.planning import Shape
from mlfabric.twin.flow_kernel import CUT, INPUT, Column
from mlfabric.twin.round_streams import MOST_IN_CHAINS, round_streams
from tests.twin.clusters import cluster_of

CHAIN = {"w0": "w1", "w1": "w2"}
STRIPE = Trees(start=0, end=1000, root="w2", parents=CHAIN, sources={"w0": "w1", "w1": "w2"}, rate_bps=10**9)
STAR = Trees(start=1000, end=1400, root="w0", parents={"w1": "w0", "w2": "w0"}, sources={"w1": "w0", "w2": "w0"})


def shaped(*trees: Trees, shape: Shape = Shape.STRIPES) -> Shaped:
    return Shaped(shape=shape, trees=trees, transfers=(), reason="")


def test_sums_go_to_the_root_and_the_result_back_while_they_come() -> None:
    found = round_streams(shaped(STRIPE), cluster_of(3))
    ends = found.table[:, (Column.UP, Column.DOWN)].astype(int) - (0, 4)
    assert ends[:4].tolist() == [[0, 1], [1, 2], [1, 0], [2, 1]]
    assert found.table[:, Column.BITS].tolist() == [8000.0] * 4 + [0.0]
    cut = {(early, late) for early, late, kind in found.edges.tolist() if kind == CUT}
    assert cut == {(0, 1), (3, 2), (1, 3)}
    assert {(early, late) for early, late, kind in found.edges.tolist() if kind == INPUT} == {(k, 4) for k in range(4)}


def test_only_what_waits_for_others_is_spread_out() -> None:
    found = round_streams(shaped(STRIPE), cluster_of(3))
    assert found.table[:4, Column.PACE].tolist() == [np.inf, 1.0, 1.0, 1.0]
    unpaced = round_streams(shaped(replace(STRIPE, rate_bps=0)), cluster_of(3))
    assert (unpaced.table[:, Column.PACE] == np.inf).all()


def test_what_is_held_to_shares_of_links_goes_no_faster() -> None:
    held = replace(STRIPE, sums_bps={"w0": 2 * 10**8, "w1": 3 * 10**9}, results_bps={"w0": 10**8, "w1": 0})
    found = round_streams(shaped(held), cluster_of(3))
    assert found.table[:4, Column.PACE].tolist() == [0.2, 1.0, 0.1, 1.0]


def test_only_what_is_sent_first_is_looked_at_for_whether_links_are_held() -> None:
    first = round_streams(shaped(replace(STRIPE, sums_bps={"w0": 10**8})), cluster_of(3))
    assert first.up_is_held.tolist() == [True, False, False]
    assert first.down_is_held.tolist() == [False, True, False]
    later = round_streams(shaped(replace(STRIPE, sums_bps={"w1": 10**8}, results_bps={"w0": 10**8})), cluster_of(3))
    assert not (later.up_is_held | later.down_is_held).any()


def test_loads_are_those_that_the_live_scheduler_counts() -> None:
    found = round_streams(shaped(STRIPE, STAR), cluster_of(3))
    assert found.ready_bytes.tolist() == [1000, 400, 400]
    assert found.coming_bytes.tolist() == [800, 1000, 1000]
    assert found.peers.tolist() == [2 + 4, 4 + 2, 2 + 2]


def test_a_ring_of_very_many_has_no_transfers_of_its_own() -> None:
    ring = shaped(STRIPE, shape=Shape.RING)
    assert len(round_streams(ring, cluster_of(3)).table) == 5
    many = round_streams(ring, cluster_of(MOST_IN_CHAINS + 1))
    assert len(many.table) == 1
