"""A scene of a scheduler alone, which hands samples out."""

from __future__ import annotations

from mlfabric.model.samples import SampleCounts
from mlfabric.protocol import MemberLeft, SamplesDropped, SamplesReported, SamplesWanted, UpdateId
from mlfabric.scheduler.state import SchedulerState
from tests.scheduler.stage import Stage, committed, push
from tests.transcripts.transcript import Transcript

__all__ = ["samples"]


def samples(transcript: Transcript) -> None:
    """Two workers draw samples; what one of them was given and did not train on goes to the other."""
    stage = Stage().trained("a", "b")
    transcript.show(SchedulerState)
    transcript.say("both draw; a pushes what it computed from that")
    stage.ask(_wants("a"))
    stage.ask(_wants("b"))
    stage.ask(push("a", samples=((0, 8),)))
    stage.tell(committed(UpdateId("a", 1, 0), 1))
    stage.tell(SamplesReported(server="s", model="net", counts=SampleCounts(runs=((0, 8, 1),))))
    transcript.say("what b drew is dropped; it draws that once more, and a draws the rest")
    stage.ask(SamplesDropped(worker="b", model="net", samples=((8, 16),)))
    stage.ask(_wants("b", 1))
    stage.ask(_wants("a", 1))
    transcript.say("a leaves; b is given what a had")
    stage.ask(MemberLeft(name="a", incarnation=1))
    stage.ask(_wants("b", 2))
    stage.ask(_wants("b", 3))


def _wants(worker: str, serial: int = 0) -> SamplesWanted:
    return SamplesWanted(worker=worker, model="net", serial=serial, count=8, limit=24)
