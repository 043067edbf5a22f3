"""Settings that every member has, parsed once: flag, else environment, else TOML file, else default.

The command line (``cli``) gives flags and file; a training script has the environment that ``mlfabric run`` sets, and
its arguments. Nothing below the two reads the environment.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlfabric.channels import MOST_CONNECTIONS, ChannelOptions, TcpOptions
from mlfabric.errors import ConfigError
from mlfabric.model.specs import Role
from mlfabric.protocol import job_name
from mlfabric.security import Security

__all__ = [
    "DEFAULT_SCHEDULER",
    "LOG_FORMATS",
    "LOG_LEVELS",
    "WorkerSettings",
    "parse_ports",
    "parse_rate",
    "parse_size",
]

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
DEFAULT_SCHEDULER = "127.0.0.1:50061"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SWITCH = {"0": False, "false": False, "1": True, "true": True}
_BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_rate(text: str) -> int:
    """Return a rate in bit/s from text like ``"800M"``, ``"2.5G"`` or ``"10000000"``; ``"0"`` means unknown.

    Raises:
        ConfigError: not of that form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(?:bit/s|bps)?\s*", text)
    if match is None:
        raise ConfigError(f"rate {text!r}; allowed: a number with k, M, G or T, in bit/s, as in 800M or 2.5G")
    return round(float(match[1]) * _UNITS[match[2].lower()])


def parse_size(text: str) -> int:
    """Return a size in bytes from text like ``"512M"`` (decimal), ``"2Gi"`` (binary) or ``"1000000"``.

    Raises:
        ConfigError: not of that form.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)B?\s*", text)
    if match is None or (match[3] and not match[2]):
        raise ConfigError(f"size {text!r}; allowed: a number with k, M, G, T or Ki, Mi, Gi, Ti, in bytes, as in 512M")
    units = _BINARY_UNITS if match[3] else _UNITS
    return round(float(match[1]) * units[match[2].lower()])


def parse_ports(text: str) -> tuple[int, int]:
    """Return first and last port from ``"7000-7099"`` or ``"7000"``; ``"0"`` means any free one.

    Raises:
        ConfigError: not of that form.
    """
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+))?\s*", text)
    if match is None:
        raise ConfigError(f"ports {text!r}; allowed: one port or a range as in 7000-7099; 0 for any")
    return int(match[1]), int(match[2] or match[1])


def _switch(env: Mapping[str, str], name: str, unless_given: bool) -> bool:
    given = env.get(name) or str(int(unless_given))
    if given.lower() not in _SWITCH:
        raise ConfigError(f"{name}={given!r}; allowed: 1 for yes, 0 for no, empty for {int(unless_given)}")
    return _SWITCH[given.lower()]


def _number(env: Mapping[str, str], name: str, allowed: str) -> str:
    given = env.get(name, "")
    if given and not given.isdigit():
        raise ConfigError(f"{name}={given!r}; allowed: {allowed}")
    return given


def _security(env: Mapping[str, str]) -> Security:
    folder = env.get("MLFABRIC_TLS", "")
    insecure = _switch(env, "MLFABRIC_INSECURE", unless_given=False)
    return Security.of(Path(folder) if folder else None, Role.WORKER.value, insecure=insecure)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What a worker needs to know of its surroundings.

    Args:
        scheduler: ``host:port`` of the scheduler, or of several of which one is in office, joined by commas.
        name: of this worker, unique within the fabric.
        host: the machine it runs on; members of one host share its links.
        tcp: its data channel.
        metrics_port: where /metrics is served; 0 any free port, None not at all.
        workers: how many the job has, for methods whose workers begin together; 0 unknown: whoever comes first begins.
        drain_on_sigterm: whether SIGTERM lets the process settle open pushes and leave; else it dies at once.
        job: identity of the job that this worker is of, see ``mlfabric.protocol.jobs``; "" if it has none.
        job_workers: how many workers the job has, >= 1: none of them comes too late for its model.
        resume: the job goes on with what a former one has left, unless the script says something else.
        json_log: the level, as "info", from which on log lines go to the error stream as JSON; "" leaves log lines to
            the script's own logging.
    """

    scheduler: str = DEFAULT_SCHEDULER
    name: str = "worker-0"
    host: str = "localhost"
    tcp: ChannelOptions
    metrics_port: int | None = None
    workers: int = 0
    drain_on_sigterm: bool = True
    job: str = ""
    job_workers: int = 1
    resume: bool = False
    json_log: str = ""

    def within_job(self, name: str) -> str:
        """Return the name in the fabric of what is called this within the job: a worker, or a model."""
        prefix = job_name(self.job)
        return f"{prefix}/{name}" if prefix else name

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> WorkerSettings:
        """Read ``MLFABRIC_SCHEDULER``, ``_NAME``, ``_HOST``, ``_BIND``, ``_ADVERTISE``, ``_DATA_PORTS``, ``_UP``,
        ``_DOWN``, ``_MOST_CONNECTIONS``, ``_METRICS_PORT``, ``_WORKERS``, ``_JOB``, ``_RESUME``,
        ``_DRAIN_ON_SIGTERM``, ``_LOG_FORMAT``, ``_LOG_LEVEL``, ``_TLS`` and ``_INSECURE``.

        The name defaults to ``worker-`` and torchrun's ``RANK`` (0 without one); job and its workers to torchrun's
        ``TORCHELASTIC_RUN_ID`` and ``WORLD_SIZE``.

        Raises:
            ConfigError: one is malformed, or the certificate cannot be used.
        """
        env = os.environ if environment is None else environment
        metrics = _number(env, "MLFABRIC_METRICS_PORT", "a port number, 0 for any, empty for none")
        connections = _number(env, "MLFABRIC_MOST_CONNECTIONS", "a number, empty for the default")
        workers = _number(env, "MLFABRIC_WORKERS", "how many workers the job has, empty for unknown")
        return cls(
            scheduler=env.get("MLFABRIC_SCHEDULER", DEFAULT_SCHEDULER),
            name=env.get("MLFABRIC_NAME", f"worker-{env.get('RANK', '0')}"),
            host=env.get("MLFABRIC_HOST", socket.gethostname()),
            tcp=TcpOptions(
                bind=env.get("MLFABRIC_BIND", "127.0.0.1"),
                advertised_host=env.get("MLFABRIC_ADVERTISE", ""),
                ports=parse_ports(env.get("MLFABRIC_DATA_PORTS", "0")),
                up_bps=parse_rate(env.get("MLFABRIC_UP", "0")),
                down_bps=parse_rate(env.get("MLFABRIC_DOWN", "0")),
                most_connections=int(connections or MOST_CONNECTIONS),
                security=_security(env),
            ),
            metrics_port=int(metrics) if metrics else None,
            workers=int(workers or 0),
            drain_on_sigterm=_switch(env, "MLFABRIC_DRAIN_ON_SIGTERM", unless_given=True),
            job=env.get("MLFABRIC_JOB", "") or _torchrun_job(env),
            resume=_switch(env, "MLFABRIC_RESUME", unless_given=False),
            json_log=_json_log(env),
            job_workers=max(1, int(workers or _digits(env.get("WORLD_SIZE", "")))),
        )


def _json_log(env: Mapping[str, str]) -> str:
    """Return the level of log lines as JSON; "" if these are text, which is the script's business."""
    form, level = env.get("MLFABRIC_LOG_FORMAT") or LOG_FORMATS[0], env.get("MLFABRIC_LOG_LEVEL") or "warning"
    for name, value, allowed in (("_LOG_FORMAT", form, LOG_FORMATS), ("_LOG_LEVEL", level, LOG_LEVELS)):
        if value.lower() not in allowed:
            raise ConfigError(f"MLFABRIC{name}={value!r}; allowed: {', '.join(allowed)}")
    return level.lower() if form.lower() == LOG_FORMATS[1] else ""


def _torchrun_job(env: Mapping[str, str]) -> str:
    """Return the identity of a job that torchrun gives one; it is no part of names."""
    run = env.get("TORCHELASTIC_RUN_ID", "none")
    return "" if run == "none" else f"#{run}"


def _digits(text: str) -> int:
    return int(text) if text.isdigit() else 1
