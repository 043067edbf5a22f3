"""The demonstration's data: real, split without overlap, the same for the same seed."""

from __future__ import annotations

from itertools import islice

import torch

from mlfabric.demo import digits
from mlfabric.demo.scenario import Scenario


def test_no_image_is_in_both_sets_and_none_is_missing():
    data = digits.load(seed=3)
    assert len(data.test_x) == len(data.test_y) == digits.TEST_IMAGES
    assert len(data.train_x) == 1797 - digits.TEST_IMAGES
    together = torch.cat([data.train_x, data.test_x])
    assert len(together.unique(dim=0)) == len(together)


def test_every_digit_has_the_same_share_in_both_sets():
    data = digits.load(seed=3)
    for digit in range(10):
        in_train, in_test = (float((labels == digit).double().mean()) for labels in (data.train_y, data.test_y))
        assert abs(in_train - in_test) < 0.005


def test_the_seed_fixes_split_weights_and_batches():
    scenario = Scenario(seed=5)
    first, second = digits.load(5), digits.load(5)
    assert torch.equal(first.test_x, second.test_x)
    assert not torch.equal(first.test_x, digits.load(6).test_x)
    weights = [next(iter(digits.make_model(scenario).parameters())) for _ in range(2)]
    assert torch.equal(*weights)
    runs = [list(islice(digits.batches(scenario, first, rank), 50)) for rank in (1, 1, 2)]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(runs[0], runs[1], strict=True))
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(runs[0], runs[2], strict=True))


def test_one_pass_of_batches_shows_every_image_once():
    scenario, data = Scenario(batch=1437 // 3), digits.load(0)
    shown = torch.cat([images for images, _ in islice(digits.batches(scenario, data, rank=0), 3)])
    assert torch.equal(shown.sort(dim=0).values, data.train_x.sort(dim=0).values)
