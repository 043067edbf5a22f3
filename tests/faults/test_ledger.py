"""A ledger: which updates were applied, and how often, from the weights alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.faults.ledger import BASE, Ledger

LEDGER = Ledger(writers=3, slots=2, ballast=5)


def after(ledger: Ledger, updates: list[tuple[int, int]]) -> dict[str, np.ndarray]:
    model = ledger.model()
    for writer, update in updates:
        ledger.give_gradients(model, writer, update)
        for tensor in model.values():
            assert tensor.grad is not None
            tensor.data -= tensor.grad
    return {name: tensor.detach().numpy() for name, tensor in model.items()}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, LEDGER.updates - 1)), unique=True), st.randoms())
def test_what_was_applied_is_read_back_whatever_the_order(updates, random) -> None:
    twice = updates[: len(updates) // 2]
    applied = [*updates, *twice]
    random.shuffle(applied)
    model = after(LEDGER, applied)
    for writer in range(LEDGER.writers):
        times = LEDGER.applied(model["marks"], writer)
        assert [int(t) for t in times] == [applied.count((writer, i)) for i in range(LEDGER.updates)]
    assert LEDGER.flaw(model["ballast"], len(applied)) == ""


def test_every_update_has_a_place_of_its_own_and_sums_of_all_are_exact() -> None:
    every = [(writer, update) for writer in range(LEDGER.writers) for update in range(LEDGER.updates)]
    model = after(LEDGER, every * (BASE - 1))
    assert all((LEDGER.applied(model["marks"], w) == BASE - 1).all() for w in range(LEDGER.writers))


def test_a_version_that_is_not_what_was_applied_is_a_flaw() -> None:
    model = after(LEDGER, [(0, 0), (1, 0)])
    assert LEDGER.flaw(model["ballast"], 3) == "version 3 holds 2 versions"
    model["ballast"][4] += 1
    assert LEDGER.flaw(model["ballast"], 2) == "version 2 is torn: its elements were changed 2 to 3 times"


@pytest.mark.parametrize("spoilt", [0.5, -1.0, float(BASE**24)])
def test_marks_that_updates_cannot_make_are_refused(spoilt: float) -> None:
    model = LEDGER.model()
    with torch.no_grad():
        model["marks"][0] = spoilt
    with pytest.raises(ValueError, match="no sums of its updates"):
        LEDGER.applied(model["marks"].detach().numpy(), 0)


def test_means_have_an_element_for_each_update() -> None:
    ledger = Ledger(writers=2, slots=3, is_mean=True)
    assert ledger.updates == 3
    assert list(ledger.applied(after(ledger, [(1, 2)])["marks"], 1)) == [0.0, 0.0, 1.0]
