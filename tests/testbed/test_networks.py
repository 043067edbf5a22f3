from __future__ import annotations

from benchmarks.testbed.networks import FOUR, NETWORKS
from benchmarks.testbed.workload import Classifier, WorkloadSpec
from mlfabric.twin.settings import NETWORK, Direction
from tests.testbed.digits import needs_digits


def test_four_hosts_are_slow_both_ways_all_the_time_and_the_others_never():
    shares = {
        host: {
            NETWORKS["four"].share(seed, host, way, period) for seed in (0, 1) for way in Direction for period in (0, 7)
        }
        for host in (f"w{rank}" for rank in range(30))
    }

    assert [host for host, found in shares.items() if found == {0.1}] == list(FOUR.names)
    assert all(found == {1.0} for host, found in shares.items() if host not in FOUR.names)


def test_the_papers_networks_are_there_too():
    assert all(NETWORKS[name] is setting for name, setting in NETWORK.items())


@needs_digits
def test_slow_hosts_have_most_images_of_a_class_and_every_worker_draws_from_its_own_slice():
    workload = WorkloadSpec(model="mlp-50k", batch_size=64, seed=0, workers=30, sliced=True).build()
    assert isinstance(workload, Classifier)

    assert workload.classes_of([3, 4, 5, 6]) == [1]
    assert workload.classes_of(range(30)) == list(range(10))
    labels = [set(workload._batch(worker, 0)[1].tolist()) for worker in range(30)]
    assert all(len(found) <= 2 for found in labels)
    assert set().union(*labels) == set(range(10))


@needs_digits
def test_accuracy_on_all_classes_is_that_on_each_by_its_share_of_images():
    workload = WorkloadSpec(model="mlp-50k", batch_size=8, seed=0).build()
    assert isinstance(workload, Classifier)
    weights = workload.initial()

    assert workload.accuracy_on(range(10), weights) == workload.accuracy(weights)
    assert workload.accuracy_on([1], weights) != workload.accuracy_on([2], weights)
