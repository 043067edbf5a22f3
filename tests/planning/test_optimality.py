from benchmarks.optimality import SLOT_NS, gap, instance, run
from mlfabric.network import down_link


def test_a_quick_benchmark_meets_its_target_and_counts_its_instances():
    found = run(instances=8, seed=0, limit_s=1, fine=1)
    assert found["instances"] == 8
    assert found["least_gap"] <= found["mean_gap"] <= min(0.05, found["bound_mean_gap"])
    assert found["mean_gap"] <= found["p95_gap"] <= found["max_gap"] <= 0.3
    assert found["fewer"] == 0
    assert found["paper_mean_gap"] >= 0
    assert 0 < found["proved"] <= 8


def test_the_same_numbers_make_the_same_problem():
    one, other = instance(0, 5), instance(0, 5)
    assert (one.batch, one.state, one.config) == (other.batch, other.state, other.config)
    assert one.batch != instance(0, 6).batch
    link = down_link("server")
    assert one.network.rate_bps(link, SLOT_NS) == other.network.rate_bps(link, SLOT_NS)


def test_a_gap_is_a_share_of_the_best():
    assert gap(12, 10) == 0.2 or abs(gap(12, 10) - 0.2) < 1e-12
    assert gap(0, 0) == 0
