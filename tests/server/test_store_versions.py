"""The model store's versions: what is held stays as it is, memory within its promise, threads."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlfabric.model.specs import Layout, TensorSpec
from mlfabric.model.update_rules import RuleKind
from mlfabric.server.rule_kernels import StepResult
from mlfabric.server.store import Held, ModelStore
from tests.server.models import bytes_of, draw, image_of, layout_of, spec_of, step, store_of


@pytest.mark.parametrize(
    ("rule", "state"),
    [({}, 0), ({"momentum": 0.9}, 1), ({"kind": RuleKind.ADAM}, 2)],
    ids=["plain", "momentum", "adam"],
)
def test_buffers_are_there_when_they_are_needed_one_more_for_every_further_version_that_is_read(
    rule: dict[str, Any], state: int
) -> None:
    """A rule that keeps images of its own steps from one buffer of the weights to others."""
    store, size, held, kept = store_of(spec_of(**rule)), layout_of().size_bytes, [], 2 + state
    kinds = {"model": 1, "copies": 0, "history": state, "budget": 2 + 2 * state}
    assert store.memory_bytes() == {kind: images * size for kind, images in kinds.items()}
    step(store, 9)
    assert store.memory_bytes()["model"] == size
    for seed in range(5):
        held.append(store.acquire())
        step(store, seed)
        memory = store.memory_bytes()
        further = max(0, len(held) + 1 - kept)
        assert memory["copies"] == further * size
        assert memory["model"] == min(len(held) + 1, kept) * size + memory["copies"]
        assert memory["budget"] == (2 + 2 * state + further) * size
    for reader in held:
        assert reader is not None
        store.release(reader)
    assert store.memory_bytes()["copies"] == 0
    assert store.memory_bytes()["model"] == kept * size


def test_a_held_image_is_read_only() -> None:
    held = store_of(spec_of()).acquire()
    assert held is not None
    with pytest.raises(TypeError):
        held.image[0] = 1


def test_releasing_twice_is_a_broken_invariant() -> None:
    store = store_of(spec_of())
    held = store.acquire()
    assert held is not None
    store.release(held)
    with pytest.raises(AssertionError, match="version 0 was released twice"):
        store.release(held)


class Readers(RuleBasedStateMachine):
    """Readers come and go while updates, good and bad, are applied."""

    @initialize(momentum=st.sampled_from([0.0, 0.5]))
    def start(self, momentum: float) -> None:
        self.store = store_of(spec_of(momentum=momentum))
        self.twin = store_of(spec_of(momentum=momentum))
        self.applied = 0
        self.held: list[tuple[Held, bytes]] = []

    @rule()
    def acquire(self) -> None:
        held = self.store.acquire()
        if held is not None:
            assert held.version == self.applied
            self.held.append((held, bytes(held.image)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.store.release(held)

    @rule(seed=st.integers(1, 100), good=st.booleans())
    def apply(self, seed: int, good: bool) -> None:
        update = draw(self.store.spec.layout, seed)
        if not good:
            update["running_mean"][-1] = math.nan
        result = self.store.apply(image_of(self.store.spec.layout, update), 0.1)
        assert isinstance(result, StepResult) == good
        if good:
            self.applied += 1
            self.twin.apply(image_of(self.twin.spec.layout, update), 0.1)

    @invariant()
    def held_images_are_as_they_were(self) -> None:
        assert all(bytes(held.image) == then for held, then in self.held)

    @invariant()
    def versions_count_applied_updates_and_weights_do_not_depend_on_readers(self) -> None:
        assert self.store.version == self.applied
        assert bytes_of(self.store) == bytes_of(self.twin)

    @invariant()
    def memory_is_within_the_promise(self) -> None:
        memory = self.store.memory_bytes()
        assert memory["model"] + memory["history"] <= memory["budget"]


TestReaders = Readers.TestCase
TestReaders.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


# Threads


@pytest.fixture
def threads_alternate_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_alternate_often")
def test_readers_in_another_thread_never_see_a_torn_model() -> None:
    layout = Layout(tuple(TensorSpec(name=f"t{i}", shape=(50,), dtype="float32") for i in range(50)))
    minus_one = {t.name: torch.full(t.shape, -1.0) for t in layout.tensors}
    store = ModelStore(spec_of(layout))
    store.initialise(bytes(layout.size_bytes))

    def commit() -> None:
        for _ in range(100):
            store.apply(image_of(layout, minus_one), 1.0)

    committer = threading.Thread(target=commit)
    committer.start()
    seen: list[int] = []
    while committer.is_alive() or not seen:
        held = store.acquire()
        if held is not None:
            numbers = np.frombuffer(held.image, dtype=np.float32).reshape(50, -1)[:, :50]
            assert float(numbers.min()) == float(numbers.max()) == held.version
            seen.append(held.version)
            store.release(held)
    committer.join()
    assert store.version == 100
    assert seen == sorted(seen)


def test_a_step_waits_while_weights_and_history_are_held_still() -> None:
    store = store_of(spec_of(momentum=0.9))
    results = []
    committer = threading.Thread(target=lambda: results.append(step(store, 1)))
    with store.standing() as snapshot:
        committer.start()
        held = store.acquire()
        assert held is not None
        assert bytes(held.image[:60]) == snapshot.model["weight"].numpy().tobytes()
        assert store.version == snapshot.version == 0
        assert not results
    committer.join()
    assert store.version == 1
    assert isinstance(step(store, 2), StepResult)
