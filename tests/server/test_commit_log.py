"""The commit log on disk: a line for each group."""

from __future__ import annotations

import json

import pytest

from mlfabric.errors import FabricError
from mlfabric.server.commit_log import CommitLog
from tests.server.stage import commit, update

A, B = update("a", 3), update("b", 5)


def test_a_group_is_one_line_that_names_each_member(tmp_path):
    log = CommitLog(tmp_path)
    log.append("net", (commit(A, 7, tau=2, lr=0.1, step_norm=0.5),))
    log.append("net", (commit(A, 8, tau=2, lr=0.1), commit(B, 9, tau=3, lr=0.2)))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "net.commits.jsonl").read_text().splitlines()]
    assert lines == [
        {"epoch": 1, "version": 7, "updates": [["a", 1, 3]], "tau": [2], "lr": [0.1], "step_norm": 0.5},
        {
            "epoch": 1,
            "version": 9,
            "updates": [["a", 1, 3], ["b", 1, 5]],
            "tau": [2, 3],
            "lr": [0.1, 0.2],
            "step_norm": 1.0,
        },
    ]


def test_a_log_is_whole_up_to_its_last_line_before_it_is_closed(tmp_path):
    log = CommitLog(tmp_path)
    log.append("a/net", (commit(A, 1),))
    assert (tmp_path / "a_net.commits.jsonl").read_text().endswith("}\n")
    log.close()


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = CommitLog(None)
    log.append("net", (commit(A, 1),))
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_says_whose_and_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FabricError, match="commit log of net"):
        CommitLog(tmp_path / "file").append("net", (commit(A, 1),))
