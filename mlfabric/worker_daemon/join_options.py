"""What ``register_as_worker`` and ``wrap`` are given beside the model and its rule: checked, and read out of the
environment where it is not given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from mlfabric.arguments import enum_of
from mlfabric.config import WorkerSettings
from mlfabric.errors import UsageError
from mlfabric.model.specs import Method, RuleSpec
from mlfabric.protocol import JobClaim, Resume
from mlfabric.shell.forking import IN_A_COPY, is_copy
from mlfabric.telemetry.log_lines import log_as_json
from mlfabric.worker_daemon.argument_types import check_arguments
from mlfabric.worker_daemon.tensors import Trainable

__all__ = ["Joining", "joining", "note_worker"]


class _Joined(Protocol):
    """A worker of this process."""

    @property
    def has_left(self) -> bool:
        """Whether it has left the fabric."""


_workers: WeakKeyDictionary[_Joined, tuple[str, str]] = WeakKeyDictionary()
"""The workers of this process: the name of each, and that of the model which it trains, or has trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """How a worker joins; see ``register_as_worker``. Names are those in the fabric."""

    method: Method
    tau_max: int | None
    slack: int
    workers: int | None
    servers: int
    overlap: bool
    init: str | Path | int
    keep: bool
    resume: bool | None
    model_name: str
    settings: WorkerSettings

    @property
    def together(self) -> int:
        """How many workers begin together, >= 1.

        Raises:
            UsageError: the number that is given is out of range.
        """
        if self.workers is None:
            return max(1, self.settings.workers)
        if self.workers < 1 or (self.workers > 1 and self.method is Method.ASYNCHRONOUS):
            given = f"workers={self.workers} with method {self.method.value}"
            raise UsageError(f"{given}; allowed: 1, or more with the other methods")
        return self.workers

    def claim(self) -> JobClaim:
        """Return what the worker says of its job.

        Raises:
            UsageError: a model is to be kept that there is not.
        """
        if self.keep and not self.method.has_server:
            raise UsageError(f"keep=True with method {self.method.value}, which leaves no model; save your own")
        resume = True if self.resume is None and self.settings.resume else self.resume
        begins = {None: Resume.ASK, True: Resume.GO_ON, False: Resume.ANEW}[resume]
        return JobClaim(job=self.settings.job, workers=self.settings.job_workers, keep=self.keep, resume=begins)

    def check_overlap(self, rule: RuleSpec) -> None:
        """Refuse options that do not go together with updates that leave before they are complete.

        Raises:
            UsageError: names the option.
        """
        if not self.overlap:
            return
        for given, bad, allowed in (
            (f"clip_norm={rule.clip_norm:g}", rule.clip_norm > 0, "0: the norm is known when all gradients are"),
            (
                f"method {self.method.value}",
                not self.method.has_server,
                "another one; begin an all_reduce_async for each bucket",
            ),
            (f"servers={self.servers}", self.servers > 1, "1"),
        ):
            if bad:
                raise UsageError(f"overlap with {given}; allowed: {allowed}")


def joining(
    model: Trainable,
    *,
    method: Method | str,
    name: str,
    model_name: str,
    scheduler: str,
    settings: WorkerSettings | None,
    **others: Any,
) -> Joining:
    """Check the arguments that ``register_as_worker`` and ``wrap`` have in common.

    Raises:
        UsageError: an argument or an environment variable cannot be used.
    """
    if is_copy():
        raise UsageError(f"register_as_worker: {IN_A_COPY}")
    check_arguments(model=model, name=name, model_name=model_name, scheduler=scheduler, settings=settings, **others)
    settings = settings or _surroundings(name, model_name)
    settings = replace(
        settings, name=settings.within_job(name or settings.name), scheduler=scheduler or settings.scheduler
    )
    if settings.json_log:
        log_as_json(settings.json_log)
    in_fabric = settings.within_job(model_name)
    return Joining(method=enum_of(Method, "method", method), model_name=in_fabric, settings=settings, **others)


def note_worker(worker: _Joined, model_name: str, name: str) -> None:
    """Remember that this process trains a model, by the names that model and worker have in the fabric."""
    _workers[worker] = name, model_name


def _surroundings(name: str, model_name: str) -> WorkerSettings:
    """Return what the environment says; the name is one of the model's where this process uses the other already.

    Raises:
        UsageError: no name is given, and under those two this process trains a model of that name already.
    """
    settings = WorkerSettings.from_environment()
    taken = dict(names for worker, names in _workers.items() if not worker.has_left)
    if name or settings.within_job(settings.name) not in taken:
        return settings
    further = f"{settings.name}.{model_name}"
    for worker in map(settings.within_job, (settings.name, further)):
        if taken.get(worker) == settings.within_job(model_name):
            given = f"model_name={model_name!r}: {worker} trains a model of this name already"
            advice = "give each a name of its own, as in model_name='discriminator', or leave() first"
            raise UsageError(f"{given}; {advice}")
    return replace(settings, name=further)
