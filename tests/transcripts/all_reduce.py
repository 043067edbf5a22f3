"""A scene of an AllReduce job: a scheduler and three workers."""

from __future__ import annotations

from mlfabric.protocol import MemberSilent
from mlfabric.scheduler.state import SchedulerState
from mlfabric.worker_daemon.state import DaemonState
from tests.transcripts.reducing import Team
from tests.transcripts.transcript import Transcript

__all__ = ["all_reduce"]

MS = 1_000_000
TREE_BYTES = 300_000


def all_reduce(transcript: Transcript) -> None:
    """Three workers reduce twice; in the second round one of them loses its stream and comes back."""
    transcript.show(SchedulerState, DaemonState)
    team = Team(workers=3, size_bytes=TREE_BYTES)
    for player in team.players:
        team.join(player)
        _hear_and_say(team)
    for number in range(2):
        transcript.say(f"round {number + 1}")
        for player in team.players:
            team.ask(player)
        _hear_and_say(team)
        if number == 1:
            cut = team.players[2]
            transcript.say("the stream of w2 breaks; it joins again")
            team.tell(MemberSilent(name=cut.name, incarnation=team.incarnation(cut)))
            team.join(cut)
            _hear_and_say(team)
        transcript.say("the bytes have moved")
        team.move()
        _hear_and_say(team)
    assert [player.finished for player in team.players] == [2, 2, 2]


def _hear_and_say(team: Team) -> None:
    """Let all that is said be heard, a millisecond later each time, until there is nothing to be said."""
    while any(player.up or player.down for player in team.players) or _is_due(team):
        team.now_ns += MS
        for player in team.players:
            while player.up:
                team.tell(player.up.popleft())
        team.tick()
        for player in team.players:
            while player.down:
                team.hear(player)


def _is_due(team: Team) -> bool:
    due_ns = team.state.next_wakeup_ns(team.now_ns)
    return due_ns is not None and due_ns <= team.now_ns
