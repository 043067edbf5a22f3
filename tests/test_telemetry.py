"""What the services show is what Prometheus expects, over real HTTP."""

from __future__ import annotations

import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from mlfabric.errors import UsageError
from mlfabric.model.samples import SampleCounts
from mlfabric.model.specs import Role
from mlfabric.protocol import (
    Commit,
    Committed,
    Dropped,
    DropReason,
    GetId,
    Lost,
    ModelVersion,
    SumId,
    TransferEnd,
    TransferEnded,
    UpdateId,
)
from mlfabric.security import Security
from mlfabric.telemetry import (
    AggregatorMetrics,
    MetricsPage,
    MonitorMetrics,
    SchedulerMetrics,
    ServerMetrics,
    WorkerMetrics,
)

COMMITTED = Committed(version=ModelVersion(1, 7), tau=3)
DROPPED = Dropped(cause=DropReason.DELAY_BOUND)


class Direction(Enum):
    OUT = "out"
    IN = "in"


@dataclass(frozen=True)
class Moved:
    bytes: int
    direction: Direction


def scheduler() -> CollectorRegistry:
    metrics = SchedulerMetrics()
    metrics.settled("m", "w0", COMMITTED)
    metrics.settled("m", "w1", DROPPED)
    metrics.settled("m", "w1", Lost(detail="the server died"))
    metrics.plan(0.002, 5)
    metrics.decision(0.0001)
    metrics.queue("m", 4)
    metrics.version("m", ModelVersion(1, 7))
    metrics.link_rate("node-0", True, 8e9)
    metrics.round("m", 0.03, 4096)
    metrics.round_voided("m")
    metrics.probes("m", 12, 11, 2)
    metrics.members({(Role.WORKER, "here"): 3, (Role.WORKER, "silent"): 1})
    metrics.members({(Role.WORKER, "here"): 4})
    return metrics.registry


def server() -> CollectorRegistry:
    metrics = ServerMetrics()
    commit = Commit(update=UpdateId("w0", 1, 0), version=ModelVersion(1, 8), tau=3, lr=0.1, step_norm=0.5)
    metrics.commit("m", commit)
    metrics.received("m", "sum")
    metrics.checkpoint("m", 0.4)
    metrics.memory({"updates": 100, "models": 30})
    metrics.memory({"models": 40})
    metrics.samples("m", SampleCounts(runs=((0, 8, 1), (8, 10, 2)), dropped=((9, 14),), lost=((30, 32),), unplaced=1))
    metrics.transfer(Moved(1000, Direction.IN), "w0")
    metrics.transfer(Moved(500, Direction.OUT), "w0")
    metrics.connection_broke()
    return metrics.registry


def worker() -> CollectorRegistry:
    metrics = WorkerMetrics()
    metrics.settled(COMMITTED, 0.2)
    metrics.settled(DROPPED, 0.1)
    metrics.got(0.3)
    metrics.in_flight("worker-0", 2)
    metrics.transfer(Moved(1000, Direction.OUT), "server-0")
    return metrics.registry


def monitor() -> CollectorRegistry:
    metrics = MonitorMetrics()
    metrics.link("node-0", True, 8e9, 0.0, "nominal")
    metrics.link("node-0", True, 4e9, 1.5, "transfers")
    metrics.records(12)
    metrics.nic("eth0", 100, 200)
    return metrics.registry


def aggregator() -> CollectorRegistry:
    metrics = AggregatorMetrics()
    metrics.summed("m", 5)
    for end in (TransferEnd.TORN, TransferEnd.RECEIVED):
        metrics.ended(TransferEnded(member="a", model="m", transfer=SumId(1, 0), end=end))
    metrics.ended(TransferEnded(member="a", model="m", transfer=GetId("w0", 1, 0), end=TransferEnd.SERVED))
    metrics.refused()
    metrics.connection_broke()
    metrics.memory({"sums": 100, "models": 0})
    metrics.transfer(Moved(1000, Direction.IN), "w0")
    return metrics.registry


SERVICES: list[Callable[[], CollectorRegistry]] = [scheduler, server, worker, monitor, aggregator]
SHOWN: dict[Callable[[], CollectorRegistry], dict[str, float]] = {
    scheduler: {
        "mlfabric_updates_total{cause=,model=m,outcome=committed,worker=w0}": 1,
        "mlfabric_updates_total{cause=delay_bound,model=m,outcome=dropped,worker=w1}": 1,
        "mlfabric_updates_total{cause=,model=m,outcome=lost,worker=w1}": 1,
        "mlfabric_update_delay_versions_bucket{le=2.0,model=m}": 0,
        "mlfabric_update_delay_versions_bucket{le=4.0,model=m}": 1,
        "mlfabric_plan_seconds_sum{}": 0.002,
        "mlfabric_batch_updates_sum{}": 5,
        "mlfabric_decision_seconds_count{}": 1,
        "mlfabric_queue_updates{model=m}": 4,
        "mlfabric_model_version{model=m}": 7,
        "mlfabric_link_rate_bytes_per_second{direction=up,host=node-0}": 1e9,
        "mlfabric_probes_total{model=m}": 12,
        "mlfabric_probes_answered_total{model=m}": 11,
        "mlfabric_probed_links_changed_total{model=m}": 2,
        "mlfabric_members{role=worker,state=here}": 4,
        "mlfabric_members{role=worker,state=silent}": 0,
    },
    server: {
        "mlfabric_commits_total{model=m}": 1,
        "mlfabric_model_version{model=m}": 8,
        "mlfabric_received_total{kind=sum,model=m}": 1,
        "mlfabric_checkpoint_seconds_sum{model=m}": 0.4,
        "mlfabric_samples{fate=trained,model=m}": 11,
        "mlfabric_samples{fate=repeated,model=m}": 2,
        "mlfabric_samples{fate=dropped,model=m}": 4,
        "mlfabric_samples{fate=lost,model=m}": 2,
        "mlfabric_server_memory_bytes{kind=models}": 40,
        "mlfabric_server_memory_bytes{kind=updates}": 0,
        "mlfabric_received_bytes_total{peer=w0}": 1000,
        "mlfabric_sent_bytes_total{peer=w0}": 500,
        "mlfabric_broken_connections_total{}": 1,
    },
    worker: {
        "mlfabric_worker_updates_total{cause=,outcome=committed}": 1,
        "mlfabric_worker_updates_total{cause=delay_bound,outcome=dropped}": 1,
        "mlfabric_push_seconds_count{}": 2,
        "mlfabric_get_seconds_sum{}": 0.3,
        "mlfabric_worker_in_flight_updates{}": 2,
        "mlfabric_sent_bytes_total{peer=server-0}": 1000,
    },
    aggregator: {
        "mlfabric_sums_total{model=m}": 1,
        "mlfabric_sums_incomplete_total{model=m}": 1,
        "mlfabric_sum_updates_sum{}": 5,
        "mlfabric_models_handed_on_total{model=m}": 1,
        "mlfabric_refused_transfers_total{}": 1,
        "mlfabric_broken_connections_total{}": 1,
        "mlfabric_aggregator_memory_bytes{kind=sums}": 100,
        "mlfabric_received_bytes_total{peer=w0}": 1000,
    },
    monitor: {
        "mlfabric_link_estimate_bytes_per_second{direction=up,host=node-0,source=transfers}": 5e8,
        "mlfabric_link_estimate_age_seconds{direction=up,host=node-0}": 1.5,
        "mlfabric_transfer_records_total{}": 12,
        "mlfabric_nic_bytes_total{direction=up,interface=eth0}": 100,
        "mlfabric_nic_bytes_total{direction=down,interface=eth0}": 200,
    },
}


@pytest.fixture(params=SERVICES, ids=lambda make: make.__name__)
def service(request: pytest.FixtureRequest) -> Callable[[], CollectorRegistry]:
    make: Callable[[], CollectorRegistry] = request.param
    return make


@pytest.fixture
def page(service: Callable[[], CollectorRegistry]) -> Iterator[str]:
    served = MetricsPage(service(), "127.0.0.1", 0)
    port = served.start()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        yield answer.read().decode()
    served.stop()


def _values(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_a_scrape_shows_what_was_observed(service: Callable[[], CollectorRegistry], page: str) -> None:
    shown = _values(page)
    wanted = SHOWN[service]
    assert {name: shown.get(name) for name in wanted} == wanted


def test_promtool_finds_nothing_to_complain_about(page: str) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is missing; on Debian it is in the package prometheus")
    command = [promtool, "check", "metrics"]
    checked = subprocess.run(command, input=page, capture_output=True, text=True, timeout=30, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_an_estimate_is_shown_under_one_source_only() -> None:
    shown = [sample.labels for family in monitor().collect() for sample in family.samples if "source" in sample.labels]
    assert [labels["source"] for labels in shown] == ["transfers"]


def test_services_in_one_process_do_not_share_figures() -> None:
    first, second = WorkerMetrics(), WorkerMetrics()
    first.in_flight("worker-0", 3)
    assert first.registry.get_sample_value("mlfabric_worker_in_flight_updates") == 3
    assert second.registry.get_sample_value("mlfabric_worker_in_flight_updates") == 0


def test_a_port_in_use_is_refused_and_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1:{port} .*free port, or port 0"):
            MetricsPage(CollectorRegistry(), "127.0.0.1", port).start()


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:0"):
        MetricsPage(CollectorRegistry(), "192.0.2.1", 0, Security(insecure=True)).start()


def test_a_stopped_page_frees_its_port_and_can_be_started_again() -> None:
    page = MetricsPage(CollectorRegistry(), "127.0.0.1", 0)
    port = page.start()
    page.stop()
    page.stop()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
    again = MetricsPage(CollectorRegistry(), "127.0.0.1", port)
    assert again.start() == port
    again.stop()
