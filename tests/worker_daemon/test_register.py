"""How a training script joins: initial weights, settings, and what is refused before anything is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.errors import ConfigError, LayoutError, UsageError
from mlfabric.protocol import GetId, UpdateId
from mlfabric.worker_daemon.initial_weights import initialise
from mlfabric.worker_daemon.observations import Settled, Transferred
from tests.fabric.harness import fabric, gradients, small_model


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class Scale(torch.nn.Module):
    """A module without reset_parameters()."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(2))


def test_a_seed_gives_every_worker_the_same_weights_and_leaves_the_random_state_alone() -> None:
    one, two, other = small_model(1), small_model(2), small_model(3)
    state = torch.random.get_rng_state()
    initialise(one, 7)
    initialise(two, 7)
    initialise(other, 8)
    assert torch.equal(state, torch.random.get_rng_state())
    assert same(one, two)
    assert not same(one, other)


def test_a_seed_for_parameters_that_nothing_resets_is_refused() -> None:
    with pytest.raises(UsageError, match=r"init=7: no reset_parameters\(\) covers factor; use 'first' or a file"):
        initialise(Scale(), 7)


@pytest.mark.parametrize("nested", [False, True])
def test_a_file_gives_its_weights(tmp_path: Path, nested: bool) -> None:
    source, model = small_model(1), small_model(2)
    path = tmp_path / "weights.pt"
    torch.save({"model": source.state_dict()} if nested else source.state_dict(), path)
    initialise(model, path)
    assert same(model, source)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.pt.*No such file"):
        initialise(small_model(), tmp_path / "nothing.pt")


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save(torch.nn.Linear(1, 1).state_dict(), path)
    with pytest.raises(LayoutError, match=r"has no 0\.bias, 0\.weight, 2\.bias, 2\.weight"):
        initialise(small_model(), path)
    wrong = small_model().state_dict()
    wrong["0.weight"] = torch.zeros(1, 1)
    torch.save(wrong, path)
    with pytest.raises(LayoutError, match="does not fit the model"):
        initialise(small_model(), path)


def test_named_tensors_begin_with_the_first_worker_s_weights_only() -> None:
    with pytest.raises(UsageError, match="needs a torch module"):
        initialise({"w": torch.zeros(1, requires_grad=True)}, 3)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with fabric() as running:
        monkeypatch.setenv("MLFABRIC_SCHEDULER", running.scheduler.address)
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("MLFABRIC_HOST", "machine-1")
        with mlfabric.register_as_worker(small_model()) as worker:
            (member,) = (m for m in running.status().members if m.role == "worker")
        assert (worker.name, member.name, member.host) == ("worker-3", "worker-3", "machine-1")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MLFABRIC_UP", "fast"),
        ("MLFABRIC_DATA_PORTS", "a-b"),
        ("MLFABRIC_METRICS_PORT", "x"),
        ("MLFABRIC_WORKERS", "all"),
        ("MLFABRIC_MOST_CONNECTIONS", "some"),
        ("MLFABRIC_LOG_FORMAT", "xml"),
        ("MLFABRIC_LOG_LEVEL", "loud"),
    ],
)
def test_a_malformed_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{value}.*allowed"):
        WorkerSettings.from_environment({variable: value})


@pytest.mark.parametrize(("said", "most"), [("", 8192), ("12", 12)])
def test_how_many_connections_a_worker_takes_can_be_said(said: str, most: int) -> None:
    tcp = WorkerSettings.from_environment({"MLFABRIC_MOST_CONNECTIONS": said}).tcp
    assert isinstance(tcp, TcpOptions)
    assert tcp.most_connections == most


@pytest.mark.parametrize(("given", "number"), [(None, 4), (2, 2), (1, 1)])
def test_the_environment_says_how_many_begin_together_unless_the_script_does(
    monkeypatch: pytest.MonkeyPatch, given: int | None, number: int
) -> None:
    monkeypatch.setenv("MLFABRIC_WORKERS", "4")
    with fabric() as running:
        monkeypatch.setenv("MLFABRIC_SCHEDULER", running.scheduler.address)
        with mlfabric.register_as_worker(small_model(), method=mlfabric.Method.SYNCHRONOUS, workers=given):
            assert running.scheduler.state.models["model"].pushes.spec.workers == number


def test_an_observer_hears_of_transfers_and_outcomes() -> None:
    seen: list[Transferred | Settled] = []
    with fabric() as running:
        model = small_model()
        worker = running.worker(model, observer=seen.append)
        worker.get()
        gradients(model)
        outcome = worker.push().result(10)
        worker.get()
    settled = [s for s in seen if isinstance(s, Settled) and s.outcome == outcome]
    assert len(settled) == 1
    assert settled[0].pushed_ns < settled[0].settled_ns
    received = [s for s in seen if isinstance(s, Transferred) and isinstance(s.transfer, GetId)]
    assert received
    assert all(s.size_bytes == 304 or not isinstance(s.transfer, UpdateId) for s in seen if isinstance(s, Transferred))


def test_a_metrics_port_in_use_is_said_and_leaves_the_name_free(free_port: int) -> None:
    with fabric() as running:
        settings = replace(running.settings(), metrics_port=running.scheduler.port)
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{running.scheduler.port}"):
            mlfabric.register_as_worker(small_model(), settings=settings)
        running.worker(small_model()).get()


def test_a_further_model_s_worker_is_named_after_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with fabric() as running:
        monkeypatch.setenv("MLFABRIC_SCHEDULER", running.scheduler.address)
        monkeypatch.setenv("MLFABRIC_METRICS_PORT", "0")
        with mlfabric.register_as_worker(small_model(), model_name="a") as first:
            with mlfabric.register_as_worker(small_model(), model_name="b") as second:
                second.get()
                with pytest.raises(
                    UsageError, match=r"model_name='b': worker-0\.b trains a model of this name already"
                ):
                    mlfabric.register_as_worker(small_model(), model_name="b")
                named = mlfabric.register_as_worker(small_model(), model_name="b", name="other")
                assert {w.name for w in (first, second, named)} == {"worker-0", "worker-0.b", "other"}
                assert (first.tau_max, named.tau_max) == (2, 4)
                named.leave()
            first.get()
        with mlfabric.register_as_worker(small_model(), model_name="b") as again:
            assert again.name == "worker-0"


def test_all_models_of_a_process_share_one_page_of_metrics_until_the_last_has_left(free_port: int) -> None:
    def shown() -> str:
        with urlopen(f"http://127.0.0.1:{free_port}/metrics") as page:
            return str(page.read(), "utf-8")

    with fabric() as running:
        workers = [
            mlfabric.register_as_worker(
                small_model(), model_name=name, settings=replace(running.settings(name), metrics_port=free_port)
            )
            for name in ("a", "b")
        ]
        for worker in workers:
            worker.get()
        assert "mlfabric_get_seconds_count 2.0" in shown()
        workers[0].leave()
        assert "mlfabric_get_seconds_count 2.0" in shown()
        workers[1].leave()
        with pytest.raises(OSError, match="refused"):
            shown()
