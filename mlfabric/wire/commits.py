"""Entries of a commit log on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlfabric.protocol import Commit
from mlfabric.v1 import session_pb2 as session
from mlfabric.wire.sampling import from_samples, to_samples
from mlfabric.wire.values import fill_request, fill_version, from_update_id, from_version, need

__all__ = ["fill_commits", "from_commits"]


def fill_commits(messages: Any, commits: Iterable[Commit]) -> None:
    """Write the entries of a log into a repeated field."""
    for commit in commits:
        entry = messages.add(
            tau=commit.tau, lr=commit.lr, step_norm=commit.step_norm, samples=to_samples(commit.samples)
        )
        fill_request(entry.update, commit.update)
        fill_version(entry.version, commit.version)


def from_commits(messages: Iterable[session.Commit]) -> tuple[Commit, ...]:
    """Return the entries that a repeated field holds.

    Raises:
        UsageError: one is incomplete.
    """
    return tuple(_from_commit(entry) for entry in messages)


def _from_commit(message: session.Commit) -> Commit:
    need(message, "update")
    need(message, "version")
    return Commit(
        update=from_update_id(message.update),
        version=from_version(message.version),
        tau=message.tau,
        lr=message.lr,
        step_norm=message.step_norm,
        samples=from_samples(message.samples, "Commit.samples"),
    )
