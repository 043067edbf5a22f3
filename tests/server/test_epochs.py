"""Epochs of schedulers and servers on disk, and which versions a server counts as of its path."""

from __future__ import annotations

import pytest

from mlfabric.errors import FabricError
from mlfabric.model.specs import Layout, ModelSpec, RuleSpec, TensorSpec
from mlfabric.protocol import DropReason, Expected, ModelVersion, UpdateId
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra
from mlfabric.server.gate import Gate
from mlfabric.server.resume import extra_of, resume
from mlfabric.server.store import ModelStore
from mlfabric.shell.kept_numbers import keep_number, last_number, next_number

SPEC = ModelSpec(name="m/1", layout=Layout((TensorSpec(name="w", shape=(2,), dtype="float32"),)), rule=RuleSpec(lr=0.1))


def test_an_epoch_is_later_than_all_before_and_not_below_what_is_asked_for(tmp_path):
    path = tmp_path / "m.epoch"
    assert [next_number(path, 2), next_number(path, 2), next_number(path, 8), next_number(path, 3)] == [2, 3, 8, 9]


def test_a_server_resumes_in_the_epoch_of_its_checkpoint_until_the_scheduler_names_one(tmp_path):
    checkpoints = CheckpointDir(tmp_path)
    store = ModelStore(SPEC)
    store.initialise(bytes(SPEC.layout.size_bytes))
    checkpoints.save(store, extra_of(ModelVersion(7, 0), (), (ModelVersion(3, 0), ModelVersion(7, 0))))
    ((holds, _),) = resume(checkpoints, "s")
    assert (holds.version, holds.began) == (ModelVersion(7, 0), (ModelVersion(3, 0), ModelVersion(7, 0)))


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("soon"), lambda path: path.mkdir()])
def test_a_server_that_cannot_write_its_epoch_down_does_not_begin(spoil, tmp_path):
    path = tmp_path / "m.epoch"
    spoil(path)
    with pytest.raises(FabricError, match=r"could not be kept in .*m\.epoch"):
        next_number(path, 1)


def test_an_epoch_that_a_server_begins_is_kept(tmp_path):
    path = tmp_path / "folder" / "m.epoch"
    assert last_number(path) == -1
    keep_number(path, 4)
    assert last_number(path) == 4


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ([], [(4, 0)]),
        ([[1, 0], [4, 20]], [(1, 0), (4, 20)]),
        ([[1, 0], [2, -1], [4, 20]], [(2, 0), (4, 20)]),
        ([[1, 0], [2, 9], [3, -2]], [(3, 0), (4, 0)]),
    ],
)
def test_checkpoints_of_releases_in_which_servers_named_epochs_are_resumed(written, path, tmp_path):
    checkpoints = CheckpointDir(tmp_path)
    store = ModelStore(SPEC)
    store.initialise(bytes(SPEC.layout.size_bytes))
    checkpoints.save(store, CheckpointExtra(server_epoch=4, log_position=0, applied=[], epochs=written))
    ((holds, _),) = resume(checkpoints, "s")
    assert [tuple(began) for began in holds.began] == path


def gate_of(*began: tuple[int, int], is_part: bool) -> Gate:
    """Return the gate of a model at version 26 of its third epoch."""
    path = tuple(ModelVersion(*one) for one in began)
    return Gate(version=ModelVersion(3, 26), began=path, is_part=is_part, initialised=True, synchronous=False)


@pytest.mark.parametrize("is_part", [False, True])
def test_what_was_lost_in_an_earlier_epoch_stays_lost_however_far_later_ones_came(is_part):
    """Epoch 1 got to 22 and was kept up to 20, epoch 2 got to 30 and was kept up to 25."""
    gate = gate_of((1, 0), (2, 20), (3, 25), is_part=is_part)
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


@pytest.mark.parametrize(
    ("epoch", "is_part", "counts"), [(2, False, False), (2, True, True), (0, True, False), (9, False, False)]
)
def test_only_parts_take_what_was_computed_in_an_epoch_that_is_not_on_their_path(epoch, is_part, counts):
    gate = gate_of((1, 0), (3, 25), is_part=is_part)
    refusal = gate.refusal(Expected(UpdateId("w", 1, 0), ModelVersion(epoch, 24), 0, 0.0), 0, tau_max=10)
    assert (None if refusal is None else refusal.cause) is (None if counts else DropReason.ROLLED_BACK)
