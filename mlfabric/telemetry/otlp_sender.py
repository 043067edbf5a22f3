"""Sends spans to a collector of OpenTelemetry; needs its SDK and the exporter for OTLP over gRPC. Shell-level."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread, local

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from mlfabric.telemetry.spans import Span
from mlfabric.version import __version__

__all__ = ["SpanSender"]

_HALF_OF_ID = 64
"""Samplers look at the lower half of a trace's id, of so many bits."""
LAST_S, LAST_IN_VAIN_S = 2.0, 0.2
"""At the end of a process its last spans may take so long; and if nobody took those before."""
TIMEOUT_S = 2.0
"""How long one attempt may take, if the environment does not say it."""
_SAYS_EACH_FAILURE = "opentelemetry.exporter.otlp.proto.grpc.exporter"

log = logging.getLogger("mlfabric.traces")
_sending = local()


class SpanSender:
    """Sends the spans of one member.

    Args:
        role: of the member; name: its own.
        where: the collector, for people.
        share: of all traces that are sent, above 0 and at most 1; all processes choose the same ones.
    """

    def __init__(self, role: str, name: str, where: str, share: float) -> None:
        whose = {"service.namespace": "mlfabric", "service.instance.id": name}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            whose["service.name"] = f"mlfabric-{role}"
        self._resource, self._scope = Resource.create(whose), InstrumentationScope("mlfabric", __version__)
        timeout_s = None if os.environ.get("OTEL_EXPORTER_OTLP_TIMEOUT") else TIMEOUT_S
        self._exporter = _Exporter(OTLPSpanExporter(timeout=timeout_s), where)
        self._processor, self._bound = BatchSpanProcessor(self._exporter), round(share * (1 << _HALF_OF_ID))

    def say(self, span: Span) -> None:
        """Have a span sent, if its trace is one of those that are."""
        if span.trace_id % (1 << _HALF_OF_ID) >= self._bound:
            return
        values = {f"mlfabric.{key}": value for key, value in span.values.items()}
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=_context(span, span.span_id),
                parent=None if span.parent_id is None else _context(span, span.parent_id),
                resource=self._resource,
                attributes={"mlfabric.id": span.subject, **values},
                status=Status(StatusCode.ERROR, span.cause) if span.cause else Status(StatusCode.OK),
                start_time=span.started_ns,
                end_time=span.ended_ns,
                instrumentation_scope=self._scope,
            )
        )

    def close(self) -> None:
        """Send what is left; what takes too long is given up."""
        ending = Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(LAST_IN_VAIN_S if self._exporter.is_in_vain else LAST_S)


class _Exporter(SpanExporter):
    """Says once that nobody takes the spans, and once that somebody does again.

    Args:
        inner: sends them.
        where: for people.
    """

    def __init__(self, inner: SpanExporter, where: str) -> None:
        self._inner, self._where, self.is_in_vain = inner, where, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans."""
        with _quietly():
            result = self._inner.export(spans)
        was_in_vain, self.is_in_vain = self.is_in_vain, result is not SpanExportResult.SUCCESS
        if self.is_in_vain and not was_in_vain:
            log.warning("nobody takes spans at %s; these are lost, and training goes on", self._where)
        elif was_in_vain and not self.is_in_vain:
            log.warning("spans go to %s again", self._where)
        return result

    def shutdown(self) -> None:
        """Send nothing more."""
        self._inner.shutdown()


@contextmanager
def _quietly() -> Iterator[None]:
    """Let the exporter not say in this thread what it tries in vain."""
    _sending.is_ours = True
    try:
        yield
    finally:
        _sending.is_ours = False


def _is_for_others(record: logging.LogRecord) -> bool:
    return not getattr(_sending, "is_ours", False)


logging.getLogger(_SAYS_EACH_FAILURE).addFilter(_is_for_others)


def _context(span: Span, span_id: int) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(span.trace_id, span_id, is_remote=span_id == span.parent_id, trace_flags=flags)
