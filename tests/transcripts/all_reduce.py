"""A scene of an AllReduce job: a scheduler and three workers, without the storm that ``round_storm`` makes of them."""

from __future__ import annotations

from mlfabric.protocol import MemberSilent
from mlfabric.scheduler.state import SchedulerState
from mlfabric.worker_daemon.state import DaemonState
from tests.scheduler.round_storm import Storm
from tests.transcripts.transcript import Transcript

__all__ = ["all_reduce"]

MS = 1_000_000
TREE_BYTES = 300_000


def all_reduce(transcript: Transcript) -> None:
    """Three workers reduce twice; in the second round one of them loses its stream and comes back."""
    transcript.show(SchedulerState, DaemonState)
    storm = Storm(seed=0, workers=3, rounds=2, size_bytes=TREE_BYTES)
    for player in storm.players:
        storm.join(player)
        _hear_and_say(storm)
    for number in range(2):
        transcript.say(f"round {number + 1}")
        for player in storm.players:
            storm.ask(player)
        _hear_and_say(storm)
        if number == 1:
            cut = storm.players[2]
            transcript.say("the stream of w2 breaks; it joins again")
            storm.tell(MemberSilent(name=cut.name, incarnation=cut.incarnation))
            storm.join(cut)
            _hear_and_say(storm)
        transcript.say("the bytes have moved")
        for player in storm.players:
            storm.move(player)
        _hear_and_say(storm)
    storm.check()
    assert all(player.is_done for player in storm.players)


def _hear_and_say(storm: Storm) -> None:
    """Let all that is said be heard, a millisecond later each time, until there is nothing to be said."""
    while any(player.up or player.down for player in storm.players) or _is_due(storm):
        storm.now_ns += MS
        for player in storm.players:
            while player.up:
                storm.say(player)
        storm.tick()
        for player in storm.players:
            while player.down:
                storm.hear(player)


def _is_due(storm: Storm) -> bool:
    due_ns = storm.state.next_wakeup_ns(storm.now_ns)
    return due_ns is not None and due_ns <= storm.now_ns
