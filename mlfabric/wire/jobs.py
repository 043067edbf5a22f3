"""What a worker says of its job, on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from mlfabric.protocol import JobClaim, Resume
from mlfabric.v1 import fabric_pb2 as fabric
from mlfabric.v1 import types_pb2 as types
from mlfabric.wire.values import enum_of, malformed

__all__ = ["from_claim", "from_job", "from_server_epochs", "to_claim"]

LONGEST_JOB = 200
_RESUME_TO = {
    Resume.ASK: types.RESUME_ASK,
    Resume.GO_ON: types.RESUME_GO_ON,
    Resume.ANEW: types.RESUME_ANEW,
}
_RESUME_OF: Mapping[int, Resume] = {
    types.RESUME_UNSPECIFIED: Resume.GO_ON,
    **{number: value for value, number in _RESUME_TO.items()},
}


def to_claim(claim: JobClaim) -> types.JobClaim:
    """Make the message of what a worker says of its job."""
    return types.JobClaim(job=claim.job, workers=claim.workers, keep=claim.keep, resume=_RESUME_TO[claim.resume])


def from_claim(message: types.JobClaim) -> JobClaim:
    """Return what a worker says of its job; a message that is absent says nothing.

    Raises:
        UsageError: the job's identity is malformed, or ``resume`` unknown.
    """
    return JobClaim(
        job=from_job(message.job, "JobClaim.job"),
        workers=message.workers or 1,
        keep=message.keep,
        resume=enum_of(_RESUME_OF, message.resume, "JobClaim.resume"),
    )


def from_job(text: str, field: str) -> str:
    """Return a job's identity, or its name.

    Raises:
        UsageError: it is too long, or nobody could type or read it.
    """
    if len(text) > LONGEST_JOB or not text.isprintable() or "," in text:
        raise malformed(field, text[:40], f"printable characters without comma, at most {LONGEST_JOB}")
    return text


def from_server_epochs(message: fabric.RegisterAsServerRequest) -> tuple[int, ...]:
    """Return the server epochs of the models that a server brings.

    Raises:
        UsageError: there are not as many as models.
    """
    if len(message.server_epochs) != len(message.models):
        given, allowed = len(message.server_epochs), f"as many as models, {len(message.models)}"
        raise malformed("RegisterAsServerRequest.server_epochs", given, allowed)
    return tuple(message.server_epochs)
