"""Tensors by name, pushed and got: nobody's gradients; what is wrong is refused with nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlfabric
from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.update_rules import MomentumAt, RuleSpec
from tests.fabric.harness import Fabric, fabric


@pytest.fixture
def running():
    with fabric() as made:
        yield made


def counts() -> dict[str, torch.Tensor]:
    return {"a": torch.zeros(2, 3, requires_grad=True), "b": torch.zeros(4, dtype=torch.float64, requires_grad=True)}


def joined(running: Fabric, model: Any, **options: Any) -> mlfabric.Worker:
    worker: mlfabric.Worker = running.worker(model, **{"rule": RuleSpec(lr=1.0), **options})
    worker.get()
    return worker


def ones(factor: float = 1.0) -> dict[str, torch.Tensor]:
    return {"a": torch.full((2, 3), factor), "b": torch.full((4,), factor, dtype=torch.float64)}


def test_an_update_by_name_is_a_step_and_the_model_is_got_by_name(running: Fabric) -> None:
    model = counts()
    worker = joined(running, model)
    model["a"].grad = torch.full((2, 3), 100.0)
    outcome = worker.push(update=ones(-2.0)).result(10)
    assert isinstance(outcome, mlfabric.Committed)
    assert model["a"].grad is not None, "gradients stay where they are"
    into = {"a": torch.empty(3, 2).t(), "b": torch.empty(4, dtype=torch.float64)}
    assert worker.get(into=into).number == 1
    assert into["a"].tolist() == [[2.0] * 3] * 2
    assert into["b"].tolist() == [2.0] * 4
    assert model["b"].tolist() == [0.0] * 4, "the registered model is left alone"
    worker.get()
    assert model["b"].tolist() == [2.0] * 4


@pytest.mark.parametrize("momentum_at", list(MomentumAt))
def test_an_update_is_treated_as_a_gradient_would_be(momentum_at: MomentumAt) -> None:
    rule = RuleSpec(lr=0.1, momentum=0.9, weight_decay=0.01, clip_norm=0.5)
    results = []
    for way in ("gradient", "update"):
        with fabric() as made:
            model = counts()
            worker = joined(made, model, rule=rule, momentum_at=momentum_at)
            for step in range(3):
                if way == "update":
                    worker.push(update=ones(step + 1.0))
                else:
                    for name, tensor in ones(step + 1.0).items():
                        model[name].grad = tensor
                    worker.push()
                worker.get()
            results.append([tensor.detach().clone() for tensor in model.values()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_buffers_travel_with_an_update_and_are_got_if_they_are_wanted(running: Fabric) -> None:
    model = {"w": torch.zeros(2, requires_grad=True), "seen": torch.nn.Buffer(torch.zeros(1))}
    worker = joined(running, model)
    model["seen"] += 3
    worker.push(update={"w": torch.ones(2)}).result(10)
    only, both = {"w": torch.empty(2)}, {"w": torch.empty(2), "seen": torch.empty(1)}
    worker.get(into=only)
    worker.get(into=both)
    assert only["w"].tolist() == both["w"].tolist() == [-1.0, -1.0]
    assert both["seen"].tolist() == [3.0]


def with_(**changes: Any) -> dict[str, Any]:
    return {**ones(), **changes}


UNFIT = [
    ({"a": torch.ones(2, 3)}, "no b; allowed: a, b"),
    (with_(c=torch.ones(1)), "c, which cannot be given; allowed: a, b"),
    (with_(a=torch.ones(3, 2)), r"a is float32\[3, 2\]; allowed: float32\[2, 3\]"),
    (with_(b=torch.ones(4)), r"b is float32\[4\]; allowed: float64\[4\]"),
    (with_(a=torch.ones(2, 3).to_sparse()), "a is sparse; allowed: dense"),
    (with_(a=torch.ones(2, 3, device="meta")), "a is on device meta"),
    (with_(a=[1.0]), "a is a list; allowed: a torch.Tensor"),
]
PUSHES = [
    *(({"update": given, "samples": [(0, 4)]}, says) for given, says in UNFIT),
    ({"update": with_(b=torch.full((4,), float("nan"), dtype=torch.float64))}, "b has NaN or Inf"),
    ({"update": with_(a=torch.full((2, 3), float("inf")))}, "a has NaN or Inf"),
    ({"update": ones(), "norm": 1.0}, r"norm=1.0; allowed: at least 3\.16"),
    ({"update": ones(), "norm": float("inf")}, "norm=inf; allowed: at least"),
    ({"update": ones(), "norm": float("nan")}, "norm=nan; allowed: at least"),
    ({"norm": 1.0}, "norm without update"),
    ({"update": ones(), "model": counts()}, "both model and update"),
    ({"update": ones(), "samples": [(3, 3)]}, "3"),
]
GETS = [
    *(({"into": given}, says) for given, says in UNFIT),
    ({"into": with_(a=torch.zeros(1).expand(2, 3))}, "expanded view"),
    ({"into": ones(), "model": counts()}, "both model and tensors"),
]


@pytest.mark.parametrize(
    ("call", "options", "says"),
    [*(("push", *case) for case in PUSHES), *(("get", *case) for case in GETS)],
)
def test_what_cannot_be_used_is_refused_and_changes_nothing(
    running: Fabric, call: str, options: Any, says: str
) -> None:
    worker = joined(running, counts())
    given = [t for t in options.get("into", {}).values() if isinstance(t, torch.Tensor) and not t.is_meta]
    before = [tensor.clone() for tensor in given]
    with pytest.raises((LayoutError, UsageError), match=says):
        getattr(worker, call)(**options)
    assert all(torch.equal(one.to_dense(), other.to_dense()) for one, other in zip(given, before, strict=True))
    assert worker.drain().committed == 0
    goes_on(worker)


def goes_on(worker: mlfabric.Worker) -> None:
    """Nothing was changed: the next push is the first step, and what it was computed from is its own."""
    assert worker._samples == ()
    assert worker.push(update=ones(), norm=10.0).result(10) == mlfabric.Committed(
        version=mlfabric.ModelVersion(worker.version.epoch, 1), tau=0
    )


def test_a_refused_norm_leaves_the_velocity_as_it_was(running: Fabric) -> None:
    model = counts()
    worker = joined(running, model, rule=RuleSpec(lr=1.0, momentum=0.5, momentum_at=MomentumAt.WORKERS))
    with pytest.raises(UsageError, match="norm"):
        worker.push(update=ones(8.0), norm=1.0)
    worker.push(update=ones())
    worker.get()
    assert model["b"].tolist() == [-1.0] * 4


def test_an_update_that_is_written_to_on_its_way_is_dropped_not_half_applied(running: Fabric) -> None:
    worker = joined(running, counts())
    handles = []
    for _ in range(5):
        update = {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.float64)}
        handles.append(worker.push(update=update))
        update["a"].add_(1)
    into = ones()
    committed = sum(isinstance(handle.result(10), mlfabric.Committed) for handle in handles)
    worker.get(into=into)
    assert into["a"].unique().tolist() == [-committed] if committed else [0.0]


def test_with_overlap_an_update_by_name_waits_for_the_push_of_a_backward(running: Fabric) -> None:
    model = counts()
    worker = joined(running, model, overlap=True)
    worker.push(update=ones())
    worker.get()
    (model["a"].sum() + model["b"].sum()).backward()
    with pytest.raises(UsageError, match="on their way"):
        worker.push(update=ones())
    worker.push()
    worker.get()
    assert model["b"].tolist() == [-2.0] * 4


def test_reducing_workers_have_no_server_to_push_to(running: Fabric) -> None:
    worker = running.worker(counts(), method=mlfabric.Method.ALL_REDUCE)
    for call in (lambda: worker.push(update=ones()), lambda: worker.get(into=ones())):
        with pytest.raises(UsageError, match="no server"):
            call()


def test_counts_that_workers_add_to_are_parameters_whose_gradient_is_minus_the_change() -> None:
    with fabric() as running:
        models = [{"counts": torch.zeros(2, requires_grad=True)} for _ in range(2)]
        workers = [running.worker(model, f"w{i}", tau_max=8, rule=RuleSpec(lr=1.0)) for i, model in enumerate(models)]
        for worker, model, change in zip(workers, models, ([1.0, 2.0], [10.0, -1.0]), strict=True):
            worker.get()
            model["counts"].grad = -torch.tensor(change)
            assert isinstance(worker.push().result(), mlfabric.Committed)
        for worker, model in zip(workers, models, strict=True):
            worker.get(min_version=2)
            assert model["counts"].tolist() == [11.0, 1.0]
