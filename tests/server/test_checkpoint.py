"""Checkpoints: what is written is read back, and no accident leaves less than the one before."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mlfabric.errors import ConfigError, FabricError, LayoutError, UsageError
from mlfabric.model.specs import Layout, ModelSpec, MomentumAt, RuleKind, RuleSpec, Schedule, TensorKind, TensorSpec
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra, load
from mlfabric.server.rule_kernels import StepResult
from mlfabric.server.store import ModelStore
from tests.server import models
from tests.server.models import assert_same, step

EXTRA = CheckpointExtra(server_epoch=2, log_position=41, applied=[["worker-0", 1, 17, [[18, 2, 40, 3]]], {"a": None}])
ROOT = Path(__file__).parents[2]
SCHEDULED = RuleSpec(lr=0.5, momentum=0.9, weight_decay=0.01, schedule=Schedule.STEP, milestones=(3, 9), factor=0.5)


def spec_of(name: str = "net", rule: RuleSpec = SCHEDULED, **tensors: TensorSpec) -> ModelSpec:
    known = {
        "weight": TensorSpec(name="weight", shape=(3, 5), dtype="float32"),
        "scale": TensorSpec(name="scale", shape=(), dtype="bfloat16"),
        "half": TensorSpec(name="half", shape=(4,), dtype="float16"),
        "double": TensorSpec(name="double", shape=(2,), dtype="float64"),
        "nothing": TensorSpec(name="nothing", shape=(0,), dtype="float32"),
        "mean": TensorSpec(name="mean", shape=(3,), dtype="float32", kind=TensorKind.BUFFER),
    }
    layout = Layout(tuple({**known, **tensors}.values()))
    return ModelSpec(name=name, layout=layout, rule=rule, tau_max=7, server="ps")


def store_of(spec: ModelSpec, version: int = 40) -> ModelStore:
    draw = torch.Generator().manual_seed(version)
    model = {t.name: torch.randn(t.shape, generator=draw).to(getattr(torch, t.dtype)) for t in spec.layout.tensors}
    history = {
        t.name: torch.randn(t.shape, generator=draw).to(getattr(torch, t.dtype))
        for t in spec.layout.tensors
        if t.kind is TensorKind.PARAMETER
    }
    store = ModelStore(spec)
    store.restore(version=version, model=model, history=history)
    return store


def save(path: Path, store: ModelStore, extra: CheckpointExtra) -> None:
    """Write a checkpoint, under a name of its own."""
    CheckpointDir(path.parent).save(store, extra).replace(path)


# There and back


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    spec = spec_of()
    store = store_of(spec)
    save(tmp_path / "a.pt", store, EXTRA)
    loaded = load(tmp_path / "a.pt")
    assert_same(loaded.store, store)
    assert loaded.extra == EXTRA
    assert loaded.store.spec == spec
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize(
    "rule",
    [
        RuleSpec(kind=RuleKind.ADAM, beta1=0.8, epsilon=1e-6, clip_norm=2.0),
        RuleSpec(kind=RuleKind.ADADELAY, smoothness=2.0, delay_scale=0.5),
        RuleSpec(momentum=0.9, momentum_at=MomentumAt.WORKERS),
        RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER),
    ],
)
def test_every_rule_comes_back_with_its_state_and_trains_on(tmp_path: Path, rule: RuleSpec) -> None:
    tensors = (TensorSpec(name="w", shape=(5,), dtype="float32"), TensorSpec(name="v", shape=(), dtype="float64"))
    store = models.store_of(ModelSpec(name="net", layout=Layout(tensors), rule=rule))
    for seed in (1, 2):
        step(store, seed)
    save(tmp_path / "a.pt", store, EXTRA)
    loaded = load(tmp_path / "a.pt").store
    assert loaded.spec == store.spec
    assert_same(loaded, store)
    assert step(loaded, 3) == step(store, 3)
    assert_same(loaded, store)


def test_a_checkpoint_of_a_release_that_had_sgd_alone_is_read(tmp_path: Path) -> None:
    path, store = tmp_path / "a.pt", store_of(spec_of())
    save(path, store, EXTRA)
    content = torch.load(path, weights_only=True)
    old = {"lr", "momentum", "weight_decay", "schedule", "warmup_versions", "milestones", "factor", "total_versions"}
    content["rule"] = {name: value for name, value in content["rule"].items() if name in old}
    del content["squares"], content["steps"], content["spec"]["slack"]
    torch.save(content, path)
    loaded = load(path).store
    assert loaded.spec == store.spec
    assert_same(loaded, store)


def test_plain_pytorch_reads_it(tmp_path: Path) -> None:
    store = store_of(spec_of())
    save(tmp_path / "a.pt", store, EXTRA)
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert (content["format"], content["version"], content["server_epoch"], content["log_position"]) == (1, 40, 2, 41)
    assert content["applied"] == EXTRA.applied
    assert content["layout"][0] == ["weight", [3, 5], "float32", "parameter", 0]
    assert content["rule"]["schedule"] == "step"
    assert content["spec"] == {
        "name": "net",
        "method": "asynchronous",
        "tau_max": 7,
        "slack": 0,
        "server": "ps",
        "frozen_digest": "",
        "shards": 1,
        "shard": None,
    }
    assert set(content["history"]) == {"weight", "scale", "half", "double", "nothing"}
    linear = torch.nn.Linear(5, 3)
    linear.load_state_dict({"weight": content["model"]["weight"], "bias": content["model"]["mean"]})


def test_a_file_holds_model_and_history_once(tmp_path: Path) -> None:
    spec = ModelSpec(
        name="net",
        layout=Layout(tuple(TensorSpec(name=f"t{i}", shape=(10_000,), dtype="float32") for i in range(5))),
        rule=RuleSpec(momentum=0.9),
    )
    save(tmp_path / "a.pt", store_of(spec), EXTRA)
    assert 2 * spec.layout.size_bytes < (tmp_path / "a.pt").stat().st_size < 2.1 * spec.layout.size_bytes


# What cannot be read


def cut(path: Path, kept: float) -> None:
    os.truncate(path, int(path.stat().st_size * kept))


def put(path: Path, name: str, value: Any) -> None:
    torch.save({**torch.load(path, weights_only=True), name: value}, path)


def spoil(path: Path, field: str) -> None:
    content = torch.load(path, weights_only=True)
    content[field]["half"][1] = math.nan
    torch.save(content, path)


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        (Path.unlink, UsageError, r"no checkpoint at .*a\.pt"),
        *(
            (partial(cut, kept=kept), FabricError, r"a\.pt cannot be read, truncated or damaged")
            for kept in (0.0, 0.01, 0.5, 0.99)
        ),
        (partial(torch.save, {"format": 1, "model": os.system}), FabricError, "cannot be read"),
        (partial(torch.save, [1, 2]), UsageError, "no checkpoint of mlfabric: it holds a list"),
        (
            partial(torch.save, {"model": {}, "format": 1, "version": "3"}),
            UsageError,
            r"no checkpoint of mlfabric: history, version, .* missing or of a wrong type",
        ),
        (partial(put, name="format", value=2), UsageError, "has format 2; this release reads 1"),
        (
            partial(put, name="layout", value=[["weight", [3, 5], "int7", "parameter"]]),
            UsageError,
            r"describes its model in a way that cannot be read: .*int7",
        ),
        (partial(spoil, field="model"), LayoutError, r"a\.pt: net: the \w+ half has NaN or Inf"),
        (partial(spoil, field="history"), LayoutError, r"a\.pt: net: the \w+ half has NaN or Inf"),
    ],
)
def test_a_file_that_is_no_whole_checkpoint_is_refused_in_words(
    tmp_path: Path, damage: Callable[[Path], object], error: type[Exception], said: str
) -> None:
    path = tmp_path / "a.pt"
    save(path, store_of(spec_of()), EXTRA)
    damage(path)
    with pytest.raises(error, match=said):
        load(path)


def test_one_flipped_bit_among_the_weights_is_found(tmp_path: Path) -> None:
    path, store = tmp_path / "a.pt", store_of(spec_of())
    save(path, store, EXTRA)
    with store.standing() as snapshot:
        weights = snapshot.model["weight"].numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(weights) + 5] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(FabricError, match="wrong checksum of"):
        load(path)


# What cannot be written


def test_a_directory_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.write_text("")
    with pytest.raises(FabricError, match="could not be made"):
        CheckpointDir(directory).save(store_of(spec_of()), EXTRA)


@pytest.mark.parametrize("limit", [0, 1000, 100_000])
def test_a_full_disk_is_a_clear_error_and_leaves_the_old_checkpoint(tmp_path: Path, limit: int) -> None:
    spec = ModelSpec(name="net", layout=Layout((TensorSpec(name="w", shape=(100_000,), dtype="float32"),)))
    path = tmp_path / "a.pt"
    save(path, store_of(spec), EXTRA)
    before = path.read_bytes()
    newer = store_of(spec, version=41)
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, allowed[1]))
    try:
        with pytest.raises(FabricError, match=r"could not be written: .*; what was there before is unchanged"):
            save(path, newer, EXTRA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]
    assert isinstance(step(newer, 1), StepResult)


SAVE_FOR_EVER = """
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra
from mlfabric.server.store import ModelStore
from mlfabric.model.specs import Layout, ModelSpec, TensorSpec

spec = ModelSpec(name="net", layout=Layout((TensorSpec(name="w", shape=(1_000_000,), dtype="float32"),)))
store = ModelStore(spec)
store.initialise(bytes(spec.layout.size_bytes))
checkpoints = CheckpointDir(Path(sys.argv[1]))
while True:
    checkpoints.save(store, CheckpointExtra(server_epoch=1, log_position=store.version, applied=[]))
    store.apply(memoryview(bytearray(spec.layout.size_bytes)), 0.1)
"""


@pytest.mark.processes
def test_a_process_stopped_or_killed_while_it_saves_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    checkpoints = CheckpointDir(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)], cwd=ROOT)
    try:
        for _ in range(10):
            before = set(tmp_path.glob("*.pt"))
            while not set(tmp_path.glob("*.pt")) - before:
                assert process.poll() is None
            with stopped(process):
                (loaded,) = checkpoints.load_newest()
                assert loaded.extra.log_position == loaded.store.version
        half_written = False
        while not half_written:
            with stopped(process):
                half_written = any(tmp_path.glob(".*.tmp"))
                if half_written:
                    process.kill()
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.glob(".*.tmp"))
    (loaded,) = checkpoints.load_newest()
    assert loaded.extra.log_position == loaded.store.version


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    yield
    process.send_signal(signal.SIGCONT)


# A directory of them


def test_the_newest_of_each_model_are_kept(tmp_path: Path) -> None:
    checkpoints = CheckpointDir(tmp_path / "deep" / "down", keep=2)
    assert checkpoints.load_newest() == []
    for version in (1, 2, 10):
        for name in ("net", "other"):
            checkpoints.save(store_of(spec_of(name), version), EXTRA)
    names = sorted(p.name for p in checkpoints.directory.iterdir())
    assert names == [f"{n}-e000002-v0000000000{v}.pt" for n in ("net", "other") for v in ("02", "10")]
    assert [(c.store.spec.name, c.store.version) for c in checkpoints.load_newest()] == [("net", 10), ("other", 10)]


def test_a_newer_server_epoch_is_newer_at_any_version(tmp_path: Path) -> None:
    checkpoints = CheckpointDir(tmp_path)
    for epoch, version in ((1, 100), (2, 97)):
        extra = CheckpointExtra(server_epoch=epoch, log_position=0, applied=None)
        checkpoints.save(store_of(spec_of(), version), extra)
    [newest] = checkpoints.load_newest()
    assert (newest.extra.server_epoch, newest.store.version) == (2, 97)


def test_what_a_crash_left_of_this_model_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = [".other-e000001-v000000000001.pt.00ab.tmp", "net.txt", "net-latest.pt", ".net.tmp"]
    left_over = ".net-e000001-v000000000001.pt.00ab.tmp"
    for name in (*kept, left_over):
        (tmp_path / name).write_text("")
    path = CheckpointDir(tmp_path, keep=1).save(store_of(spec_of()), EXTRA)
    assert {p.name for p in tmp_path.iterdir()} == {*kept, path.name}


@pytest.mark.parametrize("name", ["a/b", "../up", ".hidden", "ümlaut", "x" * 300, "a b", "net-e000002-v000000000001"])
def test_any_model_name_makes_a_file_of_its_own_in_the_directory(tmp_path: Path, name: str) -> None:
    checkpoints = CheckpointDir(tmp_path)
    plain = checkpoints.save(store_of(spec_of("a_b")), EXTRA)
    path = checkpoints.save(store_of(spec_of(name)), EXTRA)
    assert path.parent == tmp_path
    assert not path.name.startswith(".")
    assert {p.name for p in tmp_path.iterdir()} == {plain.name, path.name}
    assert {c.store.spec.name for c in checkpoints.load_newest()} == {"a_b", name}


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoints to keep: 0; allowed: 1 or more"):
        CheckpointDir(tmp_path, keep=0)
