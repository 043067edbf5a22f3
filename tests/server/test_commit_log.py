"""The commit log on disk: a line for each group."""

from __future__ import annotations

import json
import resource

import pytest

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


def test_a_line_that_was_cut_off_does_not_spoil_the_next_one(tmp_path):
    path = tmp_path / "net.commits.jsonl"
    for number, left in enumerate(("", '{"epoch": 1, "vers', '{"epoch": 1}\n')):
        path.write_text(left)
        log = CommitLog(tmp_path)
        log.append("net", (commit(A, 7 + number),))
        log.close()
        lines = path.read_text().splitlines()
        assert lines[:-1] == left.splitlines()
        assert json.loads(lines[-1])["version"] == 7 + number


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = CommitLog(None)
    log.append("net", (commit(A, 1),))
    log.close()
    assert list(tmp_path.iterdir()) == []


def versions(path):
    """Return what the lines of a log are about; fails if one is torn."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line.get("version", line) for line in lines]


@pytest.fixture
def full_disk():
    """Let a file grow to so many bytes and no further, until told otherwise."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda n_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes or before[0], before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room_bytes", [1, 50])
def test_what_a_full_disk_has_no_room_for_is_written_when_there_is_some_and_no_line_is_torn(
    tmp_path, monkeypatch, caplog, full_disk, room_bytes
):
    monkeypatch.setattr("mlfabric.server.commit_log.RETRY_S", 0.0)
    path, log = tmp_path / "net.commits.jsonl", CommitLog(tmp_path)
    log.append("net", (commit(A, 1),))
    full_disk(path.stat().st_size + room_bytes)
    for version in range(2, 5):
        log.append("net", (commit(A, version),))
        assert versions(path) == [1]
    full_disk(0)
    log.append("net", (commit(A, 5),))
    assert versions(path) == [1, 2, 3, 4, 5]
    log.close()
    said = [record.message for record in caplog.records]
    assert [words.partition(":")[0] for words in said] == [
        "the commit log of net cannot be written, and is kept in memory",
        "the commit log of net is written again; 0 lines of it are missing",
    ]


def test_of_what_waits_too_long_for_room_the_oldest_is_given_up_and_counted(tmp_path, monkeypatch, full_disk):
    monkeypatch.setattr("mlfabric.server.commit_log.RETRY_S", 0.0)
    monkeypatch.setattr("mlfabric.server.commit_log.MOST_WAITING", 2)
    path, log = tmp_path / "net.commits.jsonl", CommitLog(tmp_path)
    log.append("net", (commit(A, 1),))
    full_disk(path.stat().st_size)
    for version in range(2, 7):
        log.append("net", (commit(A, version),))
    full_disk(0)
    log.close()
    assert versions(path) == [1, {"missing": 3}, 5, 6]


def test_a_log_that_cannot_be_written_at_all_says_whose_and_how_much_is_lost(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    log = CommitLog(tmp_path / "file")
    log.append("net", (commit(A, 1),))
    log.close()
    assert "the commit log of net cannot be written" in caplog.text
    assert "1 lines of the commit log of net are lost" in caplog.text
