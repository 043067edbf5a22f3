"""What a process of a server and its replica is started as after it died: a table of who is there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mlfabric.launch import pairs
from mlfabric.launch.fabric_services import FabricOptions, changed_places, services
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


@pytest.mark.parametrize(
    ("answers", "running", "died", "replicas"),
    [
        ([None, True], {1}, [0], [True, True]),
        ([True, True], {0, 1}, [0, 1], [True, True]),
        ([True], {0}, [1], [False, True]),
        ([False], {1}, [0], [False, True]),
        ([False, True], set(), [0, 1], [False, True]),
    ],
    ids=[
        "its replica has taken its place",
        "and the other one in its turn",
        "a replica stays one",
        "its replica does not take its place",
        "of two together one is the server",
    ],
)
async def test_what_is_started_again_is_a_replica_where_somebody_serves(
    answers: list[bool | None], running: set[int], died: list[int], replicas: list[bool]
):
    found = pair(answers, *running)
    for number in died:
        await found.prepare(number)
    assert [found.is_replica(number) for number in (0, 1)] == replicas


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
