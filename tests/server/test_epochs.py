"""No server epoch begins twice, however often a server goes on from one checkpoint."""

from __future__ import annotations

import pytest

from mlfabric.epochs import begin_epoch, clean_epoch, note_epoch
from mlfabric.errors import FabricError
from mlfabric.protocol import STEPS_KEPT, DropReason, Expected, ModelVersion, UpdateId
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra
from mlfabric.server.gate import Gate
from mlfabric.server.resume import extra_of, resume
from mlfabric.server.store import ModelStore
from mlfabric.specs import Layout, ModelSpec, RuleSpec, TensorSpec

SPEC = ModelSpec(name="m/1", layout=Layout((TensorSpec(name="w", shape=(2,), dtype="float32"),)), rule=RuleSpec(lr=0.1))


def test_an_epoch_is_later_than_all_before_and_not_below_what_is_asked_for(tmp_path):
    path = tmp_path / "m.epoch"
    assert [begin_epoch(path, 2), begin_epoch(path, 2), begin_epoch(path, 8), begin_epoch(path, 3)] == [2, 3, 8, 9]


def test_a_server_that_begins_twice_from_one_checkpoint_gives_no_version_twice(tmp_path):
    checkpoints = CheckpointDir(tmp_path)
    store = ModelStore(SPEC)
    store.initialise(bytes(SPEC.layout.size_bytes))
    checkpoints.save(store, CheckpointExtra(server_epoch=1, log_position=0, applied=[]))
    versions = [holds.version for _ in range(2) for holds, _ in resume(checkpoints, "s")]
    assert versions == [ModelVersion(2, 0), ModelVersion(3, 0)]


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("soon"), lambda path: path.mkdir()])
def test_a_server_that_cannot_write_its_epoch_down_does_not_begin(spoil, tmp_path):
    path = tmp_path / "m.epoch"
    spoil(path)
    with pytest.raises(FabricError, match=r"could not be kept in .*m\.epoch"):
        begin_epoch(path, 1)


def test_an_epoch_that_the_scheduler_gave_is_kept_unless_a_later_one_was_begun(tmp_path):
    path = tmp_path / "folder" / "m.epoch"
    note_epoch(path, 4, 0)
    note_epoch(path, 3, 0)
    assert begin_epoch(path, 2) == 5


def test_the_last_epoch_for_which_nothing_of_before_counts_is_remembered_through_later_ones(tmp_path):
    path = tmp_path / "m.epoch"
    assert clean_epoch(path) == 0
    note_epoch(path, 4, 4)
    note_epoch(path, 5, 4)
    assert begin_epoch(path, 2) == 6
    assert clean_epoch(path) == 4


def test_an_epoch_that_counts_already_may_be_noted_later_as_one_for_which_nothing_of_before_counts(tmp_path):
    path = tmp_path / "m.epoch"
    note_epoch(path, 5, 0)
    note_epoch(path, 5, 4)
    assert clean_epoch(path) == 4
    assert begin_epoch(path, 2) == 6


def test_who_resumes_from_before_an_epoch_for_which_nothing_of_before_counts_takes_nothing_of_before(tmp_path):
    checkpoints = CheckpointDir(tmp_path)
    store = ModelStore(SPEC)
    store.initialise(bytes(SPEC.layout.size_bytes))
    checkpoints.save(store, extra_of(ModelVersion(1, 0), (), (ModelVersion(1, 0),)))
    note_epoch(checkpoints.epoch_path(SPEC.name), 6, 6)
    ((holds, store),) = resume(checkpoints, "s")
    assert (holds.version, holds.earlier) == (ModelVersion(7, 0), (ModelVersion(1, 0), ModelVersion(6, STEPS_KEPT)))
    checkpoints.save(store, extra_of(holds.version, (), (*holds.earlier, ModelVersion(7, 0))))
    ((again, _),) = resume(checkpoints, "s")
    assert again.earlier == (ModelVersion(1, 0), ModelVersion(6, STEPS_KEPT), ModelVersion(7, 0))


def test_what_was_lost_in_an_earlier_epoch_stays_lost_however_far_later_ones_came():
    """Epoch 1 got to 22 and was kept up to 20, epoch 2 got to 30 and was kept up to 25."""
    gate = Gate(
        version=ModelVersion(3, 26),
        epoch_base=25,
        initialised=True,
        synchronous=False,
        earlier=(ModelVersion(1, 0), ModelVersion(2, 20)),
    )
    bases = [ModelVersion(1, 20), ModelVersion(1, 22), ModelVersion(2, 25), ModelVersion(2, 26), ModelVersion(3, 26)]
    members = [Expected(UpdateId("w", 1, 0), base, 0, 0.0) for base in bases]
    found = [gate.refusal(member, 0, tau_max=10) for member in members]
    assert [None if one is None else one.cause for one in found] == [
        None,
        DropReason.ROLLED_BACK,
        None,
        DropReason.ROLLED_BACK,
        None,
    ]


def test_a_checkpoint_knows_where_every_epoch_before_it_began(tmp_path):
    checkpoints = CheckpointDir(tmp_path)
    store = ModelStore(SPEC)
    store.initialise(bytes(SPEC.layout.size_bytes))
    began = (ModelVersion(1, 0), ModelVersion(2, 20))
    checkpoints.save(store, extra_of(ModelVersion(2, 0), (), began))
    ((holds, _),) = resume(checkpoints, "s")
    assert holds.earlier == began
