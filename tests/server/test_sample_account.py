"""A server's account of samples: with each commit, over checkpoints, and what a log says was lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mlfabric.errors import FabricError
from mlfabric.model.samples import NO_SAMPLES, SampleCounts, Samples
from mlfabric.protocol import DropReason, ModelVersion, NoteDropped, SumId
from mlfabric.server import actions as act
from mlfabric.server import commit_log
from mlfabric.server.checkpoint import CheckpointDir
from mlfabric.server.commit_log import CommitLog, lost_after
from mlfabric.server.resume import extra_of, resume
from mlfabric.server.store import ModelStore
from tests.server.stage import SPEC, Stage, commit, member, update

COUNTS = SampleCounts(
    runs=((0, 8, 1), (8, 10, 2)), dropped=((20, 24),), lost=((4, 9),), rollbacks=((1, 3, 5),), unplaced=7
)


def note(*samples: tuple[int, int]) -> NoteDropped:
    return NoteDropped(to="s", model="net", samples=samples, reason="")


def counts(stage: Stage) -> SampleCounts:
    return stage.model.samples.counts()


# With each commit


def test_a_commit_says_what_it_was_computed_from_and_enters_it() -> None:
    stage = Stage()
    stage.bring(update("a"), 1, samples=((0, 8),))
    assert counts(stage) == NO_SAMPLES
    reports = [a.event for a in stage.step(update("a")) if isinstance(a, act.Report)]
    assert [c.samples for r in reports for c in getattr(r, "commits", ())] == [((0, 8),)]
    assert counts(stage).runs == ((0, 8, 1),)
    assert stage.state.holds()[0].samples == counts(stage)


def test_each_member_of_a_sum_is_entered() -> None:
    stage = Stage()
    members = tuple(member(update(w), samples=((i, i + 4),)) for w, i in (("a", 0), ("b", 2)))
    stage.bring_sum(SumId(1, 1), 1, *members)
    stage.step(SumId(1, 1))
    assert counts(stage).runs == ((0, 2, 1), (2, 4, 2), (4, 6, 1))


def test_what_is_not_committed_is_not_entered_and_what_is_noted_as_dropped_is() -> None:
    stage = Stage(version=9)
    refused = stage.bring(update("a"), 1, samples=((0, 8),))  # computed from version 0: its delay is above the bound
    causes = [a.event.cause for a in refused if isinstance(a, act.Report) and hasattr(a.event, "cause")]
    assert DropReason.DELAY_BOUND in causes
    assert counts(stage) == NO_SAMPLES
    stage.tell(note((0, 8)))
    assert stage.tell(replace(note((0, 8)), model="another")) == []
    assert counts(stage).not_trained == ((0, 8),)


# Over checkpoints


def saved(directory: Path, version: int, found: SampleCounts) -> Path:
    """Write a checkpoint of server epoch 2."""
    store = ModelStore(SPEC)
    store.restore(version=version, model={"w": torch.zeros(4)})
    return CheckpointDir(directory).save(store, extra_of(ModelVersion(2, version), (), (), found))


def test_an_account_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 3, COUNTS)
    ((holds, _),) = resume(CheckpointDir(tmp_path), "s")
    assert holds.samples == COUNTS


def test_a_checkpoint_without_an_account_begins_an_empty_one(tmp_path: Path) -> None:
    path = saved(tmp_path, 3, COUNTS)
    content = torch.load(path, weights_only=True)
    del content["samples"]
    torch.save(content, path)
    ((holds, _),) = resume(CheckpointDir(tmp_path), "s")
    assert holds.samples == NO_SAMPLES


@pytest.mark.parametrize("damage", [{"runs": [[8, 4, 1]]}, {"runs": [[0, 4]]}, {"runs": 3}, {"dropped": [["a"]]}])
def test_a_damaged_account_is_refused(tmp_path: Path, damage: dict[str, object]) -> None:
    path = saved(tmp_path, 3, COUNTS)
    content = torch.load(path, weights_only=True)
    content["samples"] |= damage
    torch.save(content, path)
    with pytest.raises(FabricError, match="account of samples is damaged"):
        resume(CheckpointDir(tmp_path), "s")


# What a log says was lost


def logged(directory: Path, *versions: tuple[int, int, Samples]) -> Path:
    log = CommitLog(directory)
    for epoch, number, samples in versions:
        entry = commit(update("a", number), number)
        log.append("net", (replace(entry, version=ModelVersion(epoch, number), samples=samples),))
    log.close()
    return directory / "net.commits.jsonl"


def test_what_the_log_has_after_the_checkpoint_is_lost(tmp_path: Path) -> None:
    logged(tmp_path, (1, 2, ((0, 4),)), (1, 9, ((4, 8),)), (2, 3, ((8, 10),)), (2, 4, ((10, 12),)), (2, 5, ((16, 18),)))
    assert lost_after(tmp_path, "net", ModelVersion(2, 3)) == (((10, 12), (16, 18)), 5)
    saved(tmp_path, 3, SampleCounts(runs=((8, 10, 1),)))
    ((holds, _),) = resume(CheckpointDir(tmp_path), "s")
    assert holds.samples.lost == ((10, 12), (16, 18))
    assert holds.samples.rollbacks == ((2, 3, 5),)
    assert holds.version == ModelVersion(2, 3)


def test_versions_that_were_lost_are_known_and_said_where_nobody_says_what_they_were_computed_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logged(tmp_path, (2, 4, ()))
    saved(tmp_path, 3, NO_SAMPLES)
    ((holds, _),) = resume(CheckpointDir(tmp_path), "s")
    assert (holds.samples.lost, holds.samples.rollbacks) == ((), ((2, 3, 4),))
    assert "model net: versions 4 to 4 came after its last checkpoint and are lost" in caplog.text


def test_damaged_lines_of_a_log_count_as_not_written(tmp_path: Path) -> None:
    path = logged(tmp_path, (2, 4, ((0, 4),)))
    lines = path.read_text()
    bad = ['{"epoch": 2, "ver', "[]", '{"epoch": 2}', '{"epoch": 2, "version": 9, "samples": [[[4, 1]]]}', "\x00"]
    path.write_text("\n".join([*bad, lines]))
    assert lost_after(tmp_path, "net", ModelVersion(2, 3)) == (((0, 4),), 4)


def test_a_long_log_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "_END_BYTES", 300)
    path = logged(tmp_path, *((2, number, ((number, number + 1),)) for number in range(1, 200)))
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])
    for kept in (0, 5, 150, 198, 199):
        samples = ((max(2, kept + 1), 200),) if kept < 199 else ()
        assert lost_after(tmp_path, "net", ModelVersion(2, kept)) == (samples, 199)


def test_no_log_is_as_good_as_an_empty_one(tmp_path: Path) -> None:
    assert lost_after(tmp_path, "net", ModelVersion(2, 3)) == ((), 3)


def test_a_log_without_samples_says_nothing_of_them(tmp_path: Path) -> None:
    assert "samples" not in json.loads(logged(tmp_path, (1, 1, ())).read_text())
