"""What a process of a server and its replica is started as after it died: a table of who is there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mlfabric.launch import pairs
from mlfabric.launch.fabric import FabricOptions, changed_places, services
from mlfabric.launch.pairs import Pair


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "LOOK_S", 0.0)
    monkeypatch.setattr(pairs, "PATIENCE_S", 0.0)


def pair(answers: Iterable[bool | None], *running: int) -> Pair:
    """Return a pair; the scheduler says one thing after the other of whether somebody serves."""
    said = iter(answers)

    async def serves() -> bool | None:
        return next(said)

    return Pair(serves, lambda number: number in running)


async def test_who_was_the_server_becomes_a_replica_when_its_replica_has_taken_its_place():
    found = pair([None, True], 1)
    await found.prepare(0)
    assert found.is_replica(0)


async def test_and_so_does_the_other_one_in_its_turn():
    found = pair([True, True], 0, 1)
    await found.prepare(0)
    await found.prepare(1)
    assert found.is_replica(0)
    assert found.is_replica(1)


async def test_a_replica_that_died_stays_one():
    found = pair([True], 0)
    await found.prepare(1)
    assert found.is_replica(1)


async def test_where_the_replica_does_not_take_its_place_the_server_is_started_again():
    found = pair([False], 1)
    await found.prepare(0)
    assert not found.is_replica(0)


async def test_of_two_that_died_together_one_is_the_server():
    found = pair([False, True])
    await found.prepare(0)
    await found.prepare(1)
    assert [found.is_replica(number) for number in (0, 1)] == [False, True]


async def test_of_two_that_died_together_after_they_had_changed_places_one_is_the_server():
    found = pair([True, False, True], 0, 1)
    await found.prepare(0)
    found.runs = lambda number: False
    await found.prepare(0)
    await found.prepare(1)
    assert [found.is_replica(number) for number in (0, 1)] == [False, True]


def test_who_changes_places_keeps_its_host_and_its_port_of_metrics(tmp_path):
    options = FabricOptions(
        replica_div_max="2", server_up="1G", server_down="1G", metrics_port=9000, checkpoint_dir=tmp_path
    )
    own = {service.name: service.arguments for service in services(options, 1)}
    server, replica = changed_places(options, 1)

    def place(arguments: tuple[str, ...]) -> list[str]:
        return [arguments[arguments.index(flag) + 1] for flag in ("--host", "--metrics-port", "--checkpoint-dir")]

    assert place(server.arguments) == place(own["replica-0"])
    assert place(replica.arguments) == place(own["server-0"])
    assert server.again == ("--resume",)
