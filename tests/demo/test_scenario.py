"""A scenario is one value, the same for every process."""

from __future__ import annotations

import pytest

from mlfabric.demo.scenario import FILE_NAME, Scenario
from mlfabric.errors import ConfigError, UsageError


def test_a_scenario_read_from_its_file_is_the_one_that_was_written(tmp_path):
    scenario = Scenario(seed=7, updates=11, slowness=(1.0, 3.0), rates=("1G", "10M"))
    scenario.save(tmp_path)
    assert Scenario.load(tmp_path) == scenario


def test_each_worker_needs_a_rate_or_none_has_one():
    with pytest.raises(ConfigError, match="3 rates for 2 workers"):
        Scenario(slowness=(1.0, 1.0), rates=("1G", "1G", "1G"))
    assert Scenario(slowness=(1.0, 1.0), rates=()).workers == 2


@pytest.mark.parametrize("content", ["", "{", '{"colour": "red"}', '{"updates": 0}'])
def test_a_file_that_is_no_scenario_is_refused_by_name(tmp_path, content):
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises((UsageError, ConfigError)):
        Scenario.load(tmp_path)


def test_the_learning_rate_warms_up_and_ends_at_nothing():
    rule = Scenario(updates=700, warmup_updates=100, lr=0.01).rule
    rates = [rule.lr_at(version) for version in range(710)]
    assert rates[0] < rates[50] < rates[100] <= 0.01
    assert rates[700] == 0
