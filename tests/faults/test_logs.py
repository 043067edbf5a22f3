"""What workers and servers write down: read while it grows, and after its writer was killed in the middle of a line."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.faults.logs import Entry, Got, Joined, Line, Pushed, Tail, Told, What, Writer, commits
from mlfabric.protocol import Committed, Dropped, DropReason, Lost, ModelVersion


def test_lines_are_read_back_as_they_were_while_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    tail.read()
    assert tail.lines == []
    version = ModelVersion(2, 7)
    lines: list[Line] = [
        Joined(tau_max=4, at_ns=1),
        Got(version=version, flaw="", at_ns=2),
        Pushed(update=0, computed_from=version, at_ns=3),
        Told.of(0, Committed(version=version, tau=1), 4),
        Told.of(1, Dropped(cause=DropReason.DUPLICATE, detail="again"), 5),
        Told.of(2, Lost(detail="gone"), 6),
    ]
    with Writer(path) as writer:
        for i, line in enumerate(lines):
            writer.write(line)
            tail.read()
            assert tail.lines == lines[: i + 1]
    assert tail.commits_ns == [4]
    assert [line.what for line in tail.lines if isinstance(line, Told)] == [What.COMMITTED, What.DROPPED, What.LOST]


def test_a_line_without_an_end_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Writer(path) as writer:
        writer.write(Joined(tau_max=4, at_ns=1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:5])
    tail = Tail(path)
    tail.read()
    assert len(tail.lines) == 1
    path.write_bytes(whole + whole)
    tail.read()
    assert len(tail.lines) == 2


def test_a_commit_log_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "model.commits.jsonl"
    assert list(commits(path, is_mean=False)) == []
    group = {"epoch": 1, "version": 4, "updates": [["a", 9, 0], ["b", 9, 0]]}
    path.write_text(f'{json.dumps(group)}\n{{"epoch": 1, "ver')
    (entry,) = commits(path, is_mean=False)
    assert entry == Entry(version=ModelVersion(1, 4), updates=(("a", 9, 0), ("b", 9, 0)), is_one_version=False)
    assert entry.before == 2
    assert next(commits(path, is_mean=True)).before == 3
