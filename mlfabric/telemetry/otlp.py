"""Where spans go: to a collector of OpenTelemetry, over OTLP, if the environment says so. Shell-level."""

from __future__ import annotations

import logging
import os

from mlfabric.telemetry.spans import Moments, Tracer

__all__ = ["tracer_of"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SAMPLERS = ("always_on", "always_off", "traceidratio")

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
        from mlfabric.telemetry.otlp_sender import SpanSender
    except ImportError as error:
        raise ImportError(f"{error}; to install what is missing: pip install 'mlfabric[traces]'") from error
    where = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    sender = SpanSender(role, name, where, share)
    return Tracer(moments, name, sender.say, sender.close)
