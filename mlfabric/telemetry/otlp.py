"""Where spans go: to a collector of OpenTelemetry, over OTLP, if the environment says so. Shell-level."""

from __future__ import annotations

import logging
import os
from threading import Thread

from mlfabric.telemetry.spans import Moments, Span, Tracer
from mlfabric.version import __version__

__all__ = ["tracer_of"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SAMPLERS = ("always_on", "always_off", "traceidratio")
_HALF_OF_ID = 64
"""Samplers look at the lower half of a trace's id, of so many bits."""
LAST_S = 2.0
"""At the end of a process its last spans may take so long; a collector that is away would hold it up for longer."""

log = logging.getLogger("mlfabric.traces")


def tracer_of(role: str, name: str, moments: Moments) -> Tracer | None:
    """Return who says this process's spans, if OpenTelemetry's environment variables ask for that; else None.

    These are ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, and what else the exporter for
    OTLP over gRPC reads; ``OTEL_TRACES_SAMPLER`` (always_on, always_off, traceidratio) with
    ``OTEL_TRACES_SAMPLER_ARG``; ``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_SDK_DISABLED``. They may be
    meant for other programs, so what cannot be done is said in the log, and training goes on.

    Args:
        role: scheduler, server, aggregator or worker.
        name: of this one.
        moments: which events and actions begin and end spans.
    """
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or not any(map(os.environ.get, _ENDPOINTS)):
        return None
    try:
        share = _share()
        return _tracer(role, name, moments, share) if share else None
    except (ImportError, ValueError) as error:
        log.warning("%s says no spans: %s", name, error)
        return None


def _share() -> float:
    """Return which share of all traces is wanted; all processes choose the same ones."""
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "grpc")
    if protocol != "grpc":
        raise ValueError(f"{_PROTOCOLS[1]}={protocol}; allowed: grpc")
    sampler = os.environ.get("OTEL_TRACES_SAMPLER", "always_on").removeprefix("parentbased_")
    if sampler not in _SAMPLERS:
        raise ValueError(f"OTEL_TRACES_SAMPLER={sampler}; allowed: {', '.join(_SAMPLERS)}")
    if sampler != "traceidratio":
        return float(sampler == "always_on")
    given = os.environ.get("OTEL_TRACES_SAMPLER_ARG", "1")
    try:
        share = float(given)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG={given}; allowed: 0 to 1")
    return share


def _tracer(role: str, name: str, moments: Moments, share: float) -> Tracer:
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
    except ImportError as error:
        raise ImportError(f"{error}; to install what is missing: pip install 'mlfabric[traces]'") from error
    whose = {"service.namespace": "mlfabric", "service.instance.id": name}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        whose["service.name"] = f"mlfabric-{role}"
    resource, scope = Resource.create(whose), InstrumentationScope("mlfabric", __version__)
    processor, bound = BatchSpanProcessor(OTLPSpanExporter()), round(share * (1 << _HALF_OF_ID))

    def context(span: Span, span_id: int) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(span.trace_id, span_id, is_remote=span_id == span.parent_id, trace_flags=flags)

    def say(span: Span) -> None:
        if span.trace_id % (1 << _HALF_OF_ID) >= bound:
            return
        processor.on_end(
            ReadableSpan(
                name=span.name,
                context=context(span, span.span_id),
                parent=None if span.parent_id is None else context(span, span.parent_id),
                resource=resource,
                attributes={"mlfabric.id": span.subject, **{f"mlfabric.{key}": v for key, v in span.values.items()}},
                status=Status(StatusCode.ERROR, span.cause) if span.cause else Status(StatusCode.OK),
                start_time=span.started_ns,
                end_time=span.ended_ns,
                instrumentation_scope=scope,
            )
        )

    def close() -> None:
        ending = Thread(target=processor.shutdown, daemon=True)
        ending.start()
        ending.join(LAST_S)

    return Tracer(moments, name, say, close)
