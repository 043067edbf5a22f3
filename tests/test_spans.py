"""Spans: what each process did for an update, a get or a round; received by a real OTLP service."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from mlfabric.planning import warm_up
from mlfabric.protocol import GetId, ReduceId, RoundId, SumId, UpdateId
from mlfabric.telemetry.otlp import tracer_of
from mlfabric.telemetry.spans import MOST_OPEN, Began, Consists, Ended, Moment, Passed, Span, Tracer
from tests.processes import Start

EXAMPLES = Path(__file__).parent.parent / "examples"
A, B = UpdateId("a", 1, 0), UpdateId("b", 1, 0)
SUM, ROUND = SumId(1, 7), RoundId(1, 3)


def spans_of(*moments: Moment, process: str = "one") -> list[Span]:
    said = list[Span]()
    tracer = Tracer(lambda seen: [seen] if isinstance(seen, Moment) else [], process, said.append)
    for moment in moments:
        tracer.see(moment)
    return said


def test_processes_say_parts_of_one_trace_without_a_word_between_them() -> None:
    (push,) = spans_of(Began("push", A), Ended("push", A), process="a")
    (commit,) = spans_of(Began("commit", A, {"version": 4}), Ended("commit", A, "it is not finite"), process="server")
    assert (push.parent_id, commit.parent_id, commit.trace_id) == (None, push.span_id, push.trace_id)
    assert (push.subject, push.cause, push.values) == ("a#0", "", {})
    assert (commit.cause, commit.values) == ("it is not finite", {"version": 4})
    assert commit.started_ns <= commit.ended_ns


def test_an_update_and_a_get_of_the_same_number_are_not_the_same() -> None:
    both = UpdateId("a", 1, 0), GetId("a", 1, 0)
    one, other = spans_of(*(Began("plan", each) for each in both), *(Ended("plan", each) for each in both))
    assert one.trace_id != other.trace_id


def test_each_span_has_an_id_of_its_own() -> None:
    sent = Passed("transfer", A, 5, 9), Passed("transfer", A, 10, 12)
    spans = spans_of(*sent, process="one") + spans_of(*sent, process="other")
    assert len({span.span_id for span in spans}) == 4
    assert {span.ended_ns - span.started_ns for span in spans} == {4, 2}


def test_what_is_done_with_a_sum_is_in_the_trace_of_each_of_its_updates() -> None:
    pushes = spans_of(Began("push", A), Ended("push", A), Began("push", B), Ended("push", B))
    made = spans_of(Consists(SUM, (A, B)), Began("aggregate", SUM), Ended("aggregate", SUM), process="aggregator")
    assert [(span.trace_id, span.parent_id) for span in made] == [(push.trace_id, push.span_id) for push in pushes]
    assert {span.subject for span in made} == {"sum 7"}


def test_the_plan_of_a_gradient_is_in_the_trace_of_its_round() -> None:
    reduce = ReduceId("a", 1, 2)
    plan, whole = spans_of(
        Began("plan", reduce), Began("round", ROUND), Ended("plan", reduce, within=ROUND), Ended("round", ROUND)
    )
    assert (plan.trace_id, plan.parent_id, whole.parent_id) == (whole.trace_id, whole.span_id, None)


def test_what_has_begun_goes_on_and_what_has_not_does_not_end() -> None:
    (only,) = spans_of(
        Began("plan", A, {"model": "first"}), Began("plan", A), Ended("plan", B), Ended("plan", A), Ended("plan", A)
    )
    assert only.values == {"model": "first"}


def test_what_never_ends_is_forgotten() -> None:
    begun = [Began("plan", UpdateId("a", 1, n)) for n in range(MOST_OPEN + 1)]
    assert len(spans_of(*begun, *(Ended("plan", one.subject) for one in begun))) == MOST_OPEN


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent: spans by trace, each with the service it came from."""

    def __init__(self) -> None:
        self.traces = defaultdict[bytes, list[tuple[str, str, trace_pb2.Span]]](list)

    def Export(self, request: Any, context: object) -> Any:
        for found in request.resource_spans:
            whose = {one.key: one.value.string_value for one in found.resource.attributes}
            for span in (span for scope in found.scope_spans for span in scope.spans):
                self.traces[span.trace_id].append((whose["service.name"], whose["service.instance.id"], span))
        return trace_service_pb2.ExportTraceServiceResponse()

    def whole(self, first: str) -> list[list[tuple[str, str, trace_pb2.Span]]]:
        """Return the traces that begin with a span of this name."""
        spans = self.traces.values()
        return [trace for trace in spans if any(s.name == first and not s.parent_span_id for _, _, s in trace)]


Collected = tuple[Collector, dict[str, str]]


@pytest.fixture
def collector() -> Iterator[Collected]:
    """Give a service that receives spans, and the environment that leads to it."""
    server, kept = grpc.server(ThreadPoolExecutor(2)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield kept, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "200"}
    server.stop(0)


def names_of(trace: list[tuple[str, str, trace_pb2.Span]]) -> list[tuple[str, str]]:
    return sorted((service.removeprefix("mlfabric-"), span.name) for service, _, span in trace)


def runs(start: Start, name: str, port: int, *options: str, **environment: str) -> str:
    job = "run", "-n", "2", "--scheduler", f"127.0.0.1:{port}", *options, str(EXAMPLES / name), "--steps", "10"
    code, out = start(*job, **environment).finish()
    assert code == 0, out
    return out


@pytest.mark.processes
def test_the_way_of_an_update_is_one_trace(start: Start, free_port: int, collector: Collected) -> None:
    kept, environment = collector
    runs(start, "digits_optimizer.py", free_port, **environment)
    planned = [trace for trace in kept.whole("push") if ("scheduler", "plan") in names_of(trace)]
    assert len(planned) == 20  # the initial weights are installed, and not planned
    pushes = [trace for trace in planned if ("server", "commit") in names_of(trace)]
    assert len(pushes) >= 10
    dropped = [span for trace in planned if trace not in pushes for _, _, span in trace if span.name == "push"]
    assert all("the bound is" in span.status.message for span in dropped)  # a busy machine may run late
    parts = [("scheduler", "plan"), ("server", "commit"), ("server", "transfer")]
    for trace in pushes:
        assert names_of(trace) == [*parts, ("worker", "push"), ("worker", "transfer")]
        first = next(span for _, _, span in trace if span.name == "push")
        assert {span.parent_span_id for _, _, span in trace} == {b"", first.span_id}
        assert all(first.start_time_unix_nano <= span.start_time_unix_nano for _, _, span in trace)
        plan = next(span for service, _, span in trace if span.name == "plan")
        assert "mlfabric.reason" in {one.key for one in plan.attributes}
    assert all(("server", "transfer") in names_of(trace) for trace in kept.whole("get"))


@pytest.mark.processes
@pytest.mark.timeout(300)  # the planner may have to be compiled first
def test_the_sum_that_an_update_is_in_is_part_of_its_trace(start: Start, free_port: int, collector: Collected) -> None:
    kept, environment = collector
    warm_up(print)
    rates = [word for end in ("worker", "server") for way in ("up", "down") for word in (f"--{end}-{way}", "4M")]
    six = "-n", "6", "--host-per-worker", "--aggregators", "2", *rates
    runs(start, "digits_optimizer.py", free_port, *six, **environment)
    names = [set(names_of(trace)) for trace in kept.whole("push")]
    summed = [one for one in names if {("aggregator", "aggregate"), ("server", "commit")} <= one]
    # How many are worth a sum is up to the planner and to who is ready together, and what is in a sum may be dropped.
    assert len(summed) >= 2
    assert all({("worker", "push"), ("scheduler", "plan")} <= one for one in summed)


@pytest.mark.processes
def test_a_round_is_one_trace(start: Start, free_port: int, collector: Collected) -> None:
    kept, environment = collector
    runs(start, "digits_all_reduce.py", free_port, **environment)
    rounds = kept.whole("round")
    assert len(rounds) >= 10
    both = [trace for trace in rounds if names_of(trace).count(("worker", "commit")) == 2]
    assert len(both) >= 10
    for trace in both:
        assert {name for _, name in names_of(trace)} == {"round", "plan", "aggregate", "transfer", "commit"}
        assert names_of(trace).count(("worker", "aggregate")) == 2
        assert {instance for service, instance, _ in trace if service == "mlfabric-worker"} == {"worker-0", "worker-1"}


@pytest.mark.processes
def test_training_goes_on_without_the_collector(start: Start, free_port: int) -> None:
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    out = runs(start, "digits_all_reduce.py", free_port, **away)
    assert out.count("accuracy") == 2
    assert "nobody takes spans at http://127.0.0.1:1; these are lost, and training goes on" in out
    assert "Transient error" not in out


@pytest.mark.parametrize(
    ("environment", "story"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf; allowed: grpc"),
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER=jaeger_remote; allowed: always_on"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "ARG=2; allowed: 0 to 1"),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, ""),
        ({"OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
    ],
)
def test_what_cannot_be_said_is_said_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, environment: dict[str, str], story: str
) -> None:
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", **environment}.items():
        monkeypatch.setenv(name, value)
    assert tracer_of("worker", "a", lambda seen: []) is None
    assert story in caplog.text
    assert bool(caplog.text) == bool(story)


def test_a_share_of_all_traces_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch, collector: Collected) -> None:
    kept, environment = collector
    sampled = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}
    for name, value in {**environment, **sampled}.items():
        monkeypatch.setenv(name, value)
    for role, name in (("worker", "push"), ("server", "commit")):
        tracer = tracer_of(role, role, lambda seen: [seen] if isinstance(seen, Moment) else [])
        assert tracer is not None
        for update in (UpdateId("a", 1, n) for n in range(200)):
            tracer.see(Began(name, update))
            tracer.see(Ended(name, update))
        tracer.close()
    assert 20 <= len(kept.traces) <= 80
    assert {len(trace) for trace in kept.traces.values()} == {2}
