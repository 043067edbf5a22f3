"""Jobs: who trains a model together, what a job begins from, and when a model ends with it. Pure.

A job's identity is text: ``NAME#ID``. What is before the ``#`` begins the names of its workers and models, as in
``NAME/worker-0``; "" there leaves names as they are.
"""

from __future__ import annotations

from enum import Enum

from mlfabric.values import dataclass

__all__ = ["FreeModel", "JobClaim", "JobHeld", "JobReleased", "ModelFreed", "ModelRemoved", "Resume", "job_name"]


class Resume(Enum):
    """What a worker's job begins from where a former job left a model of that name."""

    ASK = "ask"
    """From nothing: the worker is refused, and told how to go on."""
    GO_ON = "go on"
    """From what is there; from initial weights if nothing is."""
    ANEW = "anew"
    """From initial weights; what is there is freed."""


def job_name(job: str) -> str:
    """Return the part of a job's identity that its names begin with."""
    return job.partition("#")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClaim:
    """What a worker says of its job when it registers.

    Args:
        job: the job's identity; "" if nobody has given it one.
        workers: how many workers the job has, >= 1: a model does not end before so many have come.
        keep: the model stays when the job is over.
        resume: what the job begins from.
    """

    job: str = ""
    workers: int = 1
    keep: bool = False
    resume: Resume = Resume.GO_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld:
    """Somebody runs a job, and will say when it is over: further workers may come until then."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased:
    """A job that was held is over: no further worker of it comes."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRemoved:
    """Somebody wants a model to end that nobody trains."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFreed:
    """A server or a replica holds nothing of a model any more, and says nothing about it after this.

    Args:
        epoch: as it was told.
    """

    member: str
    model: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeModel:
    """The model has ended: hold nothing of it any more. A server or a replica answers with :class:`ModelFreed`.

    Args:
        epoch: the last server epoch of the model; one of its name that begins after it has a later one, and stays.
    """

    to: str
    model: str
    epoch: int
    reason: str
