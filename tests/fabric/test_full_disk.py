"""Training goes on where a server's disk is full: what cannot be written is said, and what is there stays whole."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import mlfabric
from tests.fabric.harness import fabric, gradients, small_model


def test_a_server_whose_disk_is_full_commits_and_serves_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "model.commits.jsonl"
    log.symlink_to("/dev/full")
    monkeypatch.setattr("mlfabric.server.commit_log.RETRY_S", 0.0)
    with caplog.at_level(logging.ERROR), fabric(checkpoint_dir=tmp_path) as running:
        worker = running.worker(small_model())
        for version in range(3):
            assert worker.get().number == version
            gradients(worker._model)
            outcome = worker.push().result(10)
            assert isinstance(outcome, mlfabric.Committed)
            assert outcome.version.number == version + 1
        assert "the commit log of model cannot be written, and is kept in memory: [Errno 28]" in caplog.text
    assert "3 lines of the commit log of model are lost" in caplog.text
