"""Which job each model belongs to, who of it is here, and whether the job is over. Pure.

A job is known by its identity. A job without one is whoever trains a model at the same time. It is over for a model
when everybody who trained it has left by itself, and nobody is to come any more: whoever runs the job has said that it
is over, or, if nobody runs it, as many workers have come as it has. A worker that was lost has not left, so its model
stays for it, or for whoever takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mlfabric.model.specs import Role
from mlfabric.protocol import JobClaim, MemberJoined, RefuseReason, Resume, job_name
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.records import MemberState

__all__ = ["Lifetime", "Lifetimes", "apart"]


@dataclass(slots=True)
class Lifetime:
    """What is known of one model's job.

    Args:
        job: its identity; "" of a job without one, None while nobody of it has come since a server brought the model.
        awaited: how many workers it has.
        is_kept: the model stays when the job is over.
        is_over: it is over; the model was kept.
        joined: the workers that have come.
        present: those of them that have not left by themselves.
        until_ns: workers of before this scheduler's time may be on their way back until then.
        ending: why the model is being freed; "" if it is not.
    """

    job: str | None = None
    awaited: int = 1
    is_kept: bool = False
    is_over: bool = False
    joined: set[str] = field(default_factory=set)
    present: set[str] = field(default_factory=set)
    until_ns: int = 0
    ending: str = ""


class Lifetimes:
    """The jobs of all models, by the models' names; of a model that is cut the whole one's."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._of: dict[str, Lifetime] = {}
        self.held: set[str] = set()

    def of(self, model: str) -> Lifetime:
        """Return a model's, which is made when it is first asked for."""
        return self._of.setdefault(model, Lifetime())

    def forget(self, model: str) -> None:
        """Forget a model that is no more."""
        self._of.pop(model, None)

    def forget_worker(self, worker: str) -> None:
        """Wait no more for a worker that was lost, and is remembered no longer."""
        for life in self._of.values():
            life.present.discard(worker)

    def live(self, model: str) -> list[str]:
        """Return the workers of a model that are here or silent, by name."""
        members = self._context.members
        life = self._of.get(model)
        names = sorted(life.present) if life is not None else []
        return [n for n in names if n in members and members[n].model == model and members[n].state in _LIVE]

    # Who comes

    def refusal(self, event: MemberJoined, model: str, version: int, now_ns: int) -> tuple[RefuseReason, str] | None:
        """Say why a worker cannot train a model that is at a version, for the job that it is of; None if it can."""
        life = self._of.get(model)
        if life is None:
            return None
        if life.ending:
            return RefuseReason.NOT_YET, f"waiting for model {model!r} to be freed: {life.ending}"
        if self._is_of_it(event, life, model):
            return None
        if live := self.live(model):
            return RefuseReason.OTHER_JOB, f"{_trained(model, life, live)}; {apart(event.job)}"
        if event.job.resume is not Resume.ASK:
            return None
        if now_ns < life.until_ns:
            return RefuseReason.NOT_YET, f"waiting for the workers that trained model {model!r} to come back"
        return RefuseReason.OTHER_JOB, _left(model, version)

    def begins_anew(self, event: MemberJoined, model: str) -> bool:
        """Tell whether a worker that is not refused wants what is there of a former job to end first."""
        return event.job.resume is Resume.ANEW and model in self._of and not self.is_same_job(event, model)

    def is_same_job(self, event: MemberJoined, model: str) -> bool:
        """Tell whether a worker is of the job that trains a model, or trained it last."""
        return model in self._of and self._is_of_it(event, self._of[model], model)

    def _is_of_it(self, event: MemberJoined, life: Lifetime, model: str) -> bool:
        name, job = event.member.name, event.job.job
        if job != life.job:
            return False
        known = self._context.members.get(name)
        if known is not None and known.member.incarnation == event.member.incarnation and known.model == model:
            return True
        if life.is_over:
            return False
        is_late = len(life.joined) < life.awaited and name not in life.joined
        return bool(job) or is_late or bool(self.live(model))

    def joins(self, event: MemberJoined, model: str) -> bool:
        """Note that a worker trains a model from now on; tell whether another job goes on with it thereby."""
        life, claim = self.of(model), event.job
        is_other = life.job is not None and not self._is_of_it(event, life, model)
        if is_other:
            life = self._of[model] = Lifetime()
        life.job = claim.job
        life.awaited = max(life.awaited, claim.workers)
        life.is_kept |= claim.keep
        life.joined.add(event.member.name)
        life.present.add(event.member.name)
        return is_other

    def brought(self, model: str, until_ns: int) -> None:
        """Note that a server brings a model that nobody here knows; who trained it may come back until then."""
        self.of(model).until_ns = until_ns

    def knows(self, model: str, workers: Iterable[str]) -> None:
        """Note whose updates a model has that a server brought: these have come before."""
        if self.of(model).until_ns:
            self.of(model).joined.update(workers)

    # Who goes

    def left(self, worker: str) -> Iterator[str]:
        """Note that a worker said good-bye; give the models that it trained."""
        for model, life in self._of.items():
            if worker in life.present:
                life.present.discard(worker)
                yield model

    def released(self, job: str) -> Iterator[str]:
        """Note that nobody else comes for a job; give its models."""
        self.held.discard(job)
        for model, life in self._of.items():
            if life.job == job:
                life.awaited = 0
                yield model

    def is_over(self, model: str, now_ns: int) -> bool:
        """Tell whether the job of a model is over by now, and nothing has followed from it yet."""
        life = self._of.get(model)
        if life is None or life.job is None or life.is_over or life.ending or life.present:
            return False
        return life.job not in self.held and len(life.joined) >= life.awaited and now_ns >= life.until_ns

    def next_wakeup_ns(self) -> int | None:
        """Return when workers that did not come back are waited for no longer, if that may end a model; else None."""
        lives = (life for life in self._of.values() if life.until_ns and not life.present and life.job is not None)
        return min((life.until_ns for life in lives if not (life.is_over or life.ending)), default=None)

    def expire(self, now_ns: int) -> Iterator[str]:
        """Give the models whose workers of before are waited for no longer."""
        for model, life in self._of.items():
            if 0 < life.until_ns <= now_ns:
                life.until_ns = 0
                yield model

    # Names

    def free_name(self, stem: str) -> str:
        """Return what a new job's names begin with: "" unless another one has the plain names."""
        taken = self.names()
        tries = ("", stem, *(f"{stem}-{number}" for number in range(2, len(taken) + 3)))
        return next(name for name in tries if name not in taken)

    def names(self) -> set[str]:
        """Return the names of all jobs that go on."""
        workers = [m.job for m in self._context.members.values() if m.member.role is Role.WORKER and m.state in _LIVE]
        return {job_name(job) for job in (*self.held, *workers)}


_LIVE = (MemberState.HERE, MemberState.SILENT)


def _trained(model: str, life: Lifetime, live: list[str]) -> str:
    named = f"job {life.job!r}" if life.job else "another job"
    return f"model {model!r} is trained by {named} ({', '.join(live[:3])}{', ...' if len(live) > 3 else ''})"


def apart(claim: JobClaim) -> str:
    """Say how a job gets names of its own."""
    advice = "start it with 'mlfabric run --job NAME', or with MLFABRIC_JOB=NAME"
    if job_name(claim.job):
        advice = "give the job another name"
    return f"{advice}, and its names do not collide; to be of that job, give MLFABRIC_JOB as it has it"


def _left(model: str, version: int) -> str:
    return (
        f"model {model!r} is there from a former job, at version {version}; register with resume=True (or start with "
        "'mlfabric run --resume') to go on with it, with resume=False to begin anew, or free it: "
        f"mlfabric models remove {model}"
    )
