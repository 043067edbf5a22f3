"""What the names and the types of fields cannot say: ranges, sizes, and values that need a second look.

Fields are called by message and field, as in the errors of this package: ``Expect.parts``. All of it is applied to what
comes off the wire. Whoever makes a value is held to the same by its docstring.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from mlfabric.errors import UsageError
from mlfabric.model.samples import LAST_POSITION, MOST_RANGES, MOST_RUNS, SampleCounts
from mlfabric.model.specs import ALIGNMENT_BYTES, DTYPE_BYTES, MAX_TERM
from mlfabric.protocol import JobClaim, ReducePart, ReduceRequested, StepsTimed
from mlfabric.values import dataclass

__all__ = [
    "ADDED",
    "CHECKS",
    "GIVEN",
    "LIMITS",
    "REFUSED",
    "ZERO_IS_DEFAULT",
    "Limit",
    "checked_job",
    "malformed",
    "most_ranges",
]

_LONGEST_JOB = 200


def malformed(field: str, given: object, allowed: str) -> UsageError:
    """Return the error for a field that cannot be used."""
    return UsageError(f"{field}={given!r}; allowed: {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a field may hold.

    Args:
        allowed: the limit in words.
        least, most: of a number, or of each number of a tuple; not a number is never allowed.
        is_some: a text or a tuple may not be empty.
    """

    allowed: str
    least: float = -math.inf
    most: float = math.inf
    is_some: bool = False

    def check(self, field: str, given: Any) -> Any:
        """Return what was given.

        Raises:
            UsageError: it is beyond the limit.
        """
        if isinstance(given, (int, float)):
            is_good = self.least <= given <= self.most
        else:
            is_ranged = self.least > -math.inf or self.most < math.inf
            is_good = bool(given) >= self.is_some
            is_good = is_good and not (is_ranged and any(not self.least <= each <= self.most for each in given))
        if not is_good:
            raise malformed(field, given, self.allowed)
        return given


_NAME = Limit(allowed="a name that is not empty", is_some=True)
_SOME = Limit(allowed="at least 1", is_some=True)
_FROM_1 = Limit(allowed="1 or more", least=1)
_LONGEST_NS = 365 * 86_400 * 10**9
_BOUND = Limit(allowed="0 or more, or infinite", least=0)

LIMITS: Mapping[str, Limit] = {
    "Expect.members": _SOME,
    "Expect.parts": _FROM_1,
    "Fold.lrs": Limit(allowed="at least 1, each finite and >= 0", least=0, most=sys.float_info.max, is_some=True),
    "Fold.share": Limit(allowed="above 0, at most 1", least=math.ulp(0), most=1),
    "Followed.norm": _BOUND,
    "LinkProbed.bps": _FROM_1,
    "LinkRate.host": _NAME,
    "Member.host": _NAME,
    "Member.name": _NAME,
    "Prepare.transfers": _SOME,
    "Probe.size_bytes": _FROM_1,
    "ReduceRequested.together": _FROM_1,
    "RoundSlow.left_ns": _FROM_1,
    "RoundSlow.usual_ns": _FROM_1,
    "RoundsHeld.together": _FROM_1,
    "ReduceRequested.updates": _FROM_1,
    "ReduceRequested.weight": _FROM_1,
    "RegisterAsReplicaRequest.norm": _BOUND,
    "RegisterAsReplicaRequest.server": _NAME,
    "SamplesWanted.count": _FROM_1,
    "SamplesWanted.limit": Limit(allowed="up to 2**62", most=LAST_POSITION),
    "SetThreshold.dropped": Limit(allowed="0 to 1", least=0, most=1),
    "SetThreshold.speedup": Limit(allowed="0 or more", least=0, most=sys.float_info.max),
    "StepsTimed.computed_ns": Limit(allowed="each 1 or more", least=1, most=_LONGEST_NS),
    "StepsTimed.micro_batches": _FROM_1,
    "StepsTimed.rest_ns": Limit(allowed="up to a year", least=0, most=_LONGEST_NS),
    "Sum.images": Limit(allowed="1 or 2", least=1, most=2),
    "Sum.inputs": _SOME,
    "Term.number": Limit(allowed=f"less than {MAX_TERM}", most=MAX_TERM - 1),
}
ZERO_IS_DEFAULT = frozenset({"HostModel.epoch", "JobClaim.resume", "JobClaim.workers", "ModelSpec.shards"})
"""Fields that stand for the default of the value's field if they are not set."""

ADDED = frozenset(
    {
        "Admission.pulse_port",
        "Admission.session_token",
        "Member.software_version",
        "MemberLeft.failed",
        "RegisterAsReplicaRequest.member",
    }
)
"""Fields of messages that no value has: whoever makes or reads the message sees to them."""

GIVEN = frozenset({"incarnation", "reason", "role", "to"})
"""Fields of values that no message needs to have: whoever reads the message knows them."""

REFUSED: Mapping[str, str] = {"ModelSpec.div_max": "absent; no model has a replica in this version"}
"""Fields of messages that may not be set."""

_OF_AN_UPDATE = frozenset({"Commit.samples", "Expected.samples", "PushRequested.samples", "SamplesGranted.samples"})


def most_ranges(field: str) -> int:
    """Return how many ranges of samples a field may hold."""
    return MOST_RANGES if field in _OF_AN_UPDATE else MOST_RUNS


def checked_job(text: str, field: str) -> str:
    """Return a job's identity, or its name.

    Raises:
        UsageError: it is too long, or nobody could type or read it.
    """
    if len(text) > _LONGEST_JOB or not text.isprintable() or "," in text:
        raise malformed(field, text[:40], f"printable characters without comma, at most {_LONGEST_JOB}")
    return text


def _check_elements(value: ReduceRequested) -> None:
    item_bytes = DTYPE_BYTES.get(value.dtype, 0)
    if not item_bytes:
        raise malformed("ReduceRequested.dtype", value.dtype, ", ".join(DTYPE_BYTES))
    if value.size_bytes % item_bytes:
        allowed = f"a multiple of {item_bytes} ({value.dtype})"
        raise malformed("ReduceRequested.size_bytes", value.size_bytes, allowed)


def _check_range(value: ReducePart) -> None:
    if value.start % ALIGNMENT_BYTES or value.end <= value.start:
        allowed = f"a start at a multiple of {ALIGNMENT_BYTES}, and an end after it"
        raise malformed("ReducePart.start, end", (value.start, value.end), allowed)


def _check_steps(value: StepsTimed) -> None:
    if len(value.computed_ns) != value.micro_batches * len(value.rest_ns):
        given, wanted = len(value.computed_ns), f"{value.micro_batches} for each of {len(value.rest_ns)} steps"
        raise malformed("StepsTimed.computed_ns", f"{given} times", wanted)


def _check_runs(value: SampleCounts) -> None:
    if any(times < 1 for _, _, times in value.runs):
        raise malformed("SampleCounts.runs", "samples trained on 0 times", "1 or more")
    if any(a[1:] == (b[0], b[2]) for a, b in pairwise(value.runs)):
        raise malformed("SampleCounts.runs", "two runs that are one", "runs that do not touch, or differ")


CHECKS: Mapping[type, Callable[[Any], object]] = {
    JobClaim: lambda value: checked_job(value.job, "JobClaim.job"),
    ReducePart: _check_range,
    ReduceRequested: _check_elements,
    SampleCounts: _check_runs,
    StepsTimed: _check_steps,
}
"""Looks at a whole value."""
