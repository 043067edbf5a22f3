"""Jobs: the workers that train a model together, what a job begins from, and when a model ends with it. Pure.

A job's identity is a string: ``NAME#ID``. The names of its workers and models begin with NAME, as in
``NAME/worker-0``; if NAME is empty, names have no prefix.
"""

from __future__ import annotations

from enum import Enum

from mlfabric.protocol.told import ToldOfModel
from mlfabric.values import dataclass

__all__ = ["FreeModel", "JobClaim", "JobHeld", "JobReleased", "ModelFreed", "ModelRemoved", "Resume", "job_name"]


class Resume(Enum):
    """What a worker's job begins from if an earlier job left a model of that name."""

    ASK = "ask"
    """Not chosen: the worker is refused, and told its choices."""
    GO_ON = "go on"
    """From the existing model; from initial weights if there is none."""
    ANEW = "anew"
    """From initial weights; an existing model is freed."""


def job_name(job: str) -> str:
    """Return the NAME in a job's identity, the prefix of its names."""
    return job.partition("#")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClaim:
    """What a worker reports about its job when it registers.

    Args:
        job: the job's identity; "" if it has none.
        workers: how many workers the job has, >= 1: a model does not end before that many have joined.
        keep: the model stays when the job has ended.
        resume: what the job begins from.
    """

    job: str = ""
    workers: int = 1
    keep: bool = False
    resume: Resume = Resume.GO_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld:
    """A launcher runs a job, and will report its end: further workers may join until then."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased:
    """A job that was held has ended: none of its workers will join any more."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRemoved:
    """A user asks to end a model that nobody trains."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFreed:
    """A server or a replica holds nothing of a model any more, and reports nothing about it after this.

    Args:
        epoch: as it was told.
    """

    member: str
    model: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeModel(ToldOfModel):
    """The model has ended: hold nothing of it any more. A server or a replica answers with :class:`ModelFreed`.

    Args:
        epoch: the model's last epoch; a new model of that name has a later one, and stays.
    """

    epoch: int
