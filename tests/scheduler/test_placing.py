"""Servers are asked to hold what their machines have memory for; everything else is refused before it is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlfabric.model.specs import Layout, Member, ModelSpec, Role, TensorSpec
from mlfabric.model.update_rules import MomentumAt, RuleSpec
from mlfabric.protocol import HostModel, MemberJoined, Refuse, RefuseReason, Welcome
from mlfabric.server.machine_memory import machine_bytes

from .stage import Stage, member

GIB = 1 << 30
LAYOUT = Layout((TensorSpec(name="w", shape=(GIB // 4,), dtype="float32"),))
SPEC = ModelSpec(name="net", layout=LAYOUT)
"""Of 1 GiB: plain SGD needs three times that at its server."""
WORKER, OTHER = member("a", Role.WORKER), member("b", Role.WORKER)


def refused(stage: Stage, joins: Member, spec: ModelSpec | None = None, machine_bytes: int = 0) -> str:
    """Let a member join, which is refused; return why."""
    event = MemberJoined(member=joins, spec=spec, machine_bytes=machine_bytes)
    (refusal,) = stage.state.handle(event, stage.now_ns)
    assert isinstance(refusal, Refuse)
    assert refusal.cause is RefuseReason.OUT_OF_RANGE
    return refusal.reason


@pytest.mark.parametrize(
    ("rule", "images"), [(RuleSpec(), 3), (RuleSpec(momentum=0.9, momentum_at=MomentumAt.SERVER), 5)]
)
def test_a_model_needs_its_weights_twice_its_state_and_an_update(rule: RuleSpec, images: int) -> None:
    assert replace(SPEC, rule=rule).server_bytes == images * GIB


def test_a_model_that_no_server_has_memory_for_is_refused_with_the_figures() -> None:
    stage = Stage()
    stage.server("small", machine_bytes=2 * GIB)
    stage.server("large", machine_bytes=5 * GIB // 2)
    said = refused(stage, WORKER, SPEC)
    assert said.startswith("model 'net' of 1.0 GiB needs 3.0 GiB at its server")
    assert "'large' has room for 2.5 GiB" in said
    assert not stage.state.models


def test_a_model_goes_to_a_server_with_memory_for_it_beside_what_it_holds() -> None:
    stage = Stage()
    stage.server("small", machine_bytes=2 * GIB)
    stage.server("x-large", machine_bytes=4 * GIB)
    assert any(isinstance(one, HostModel) and one.to == "x-large" for one in stage.worker("a", spec=SPEC))
    assert "'small' has room for 2.0 GiB" in refused(stage, OTHER, replace(SPEC, name="other"))
    assert "'x-large' has room for 1.0 GiB" in refused(stage, OTHER, replace(SPEC, name="other", server="x-large"))


def test_a_server_of_which_nobody_knows_what_it_has_holds_anything() -> None:
    stage = Stage()
    stage.server("s")
    assert any(isinstance(one, Welcome) for one in stage.worker("a", spec=SPEC))


@pytest.mark.parametrize("server", ["", "s0,s1"])
def test_each_part_of_a_model_that_is_cut_needs_room_at_its_server(server: str) -> None:
    stage = Stage()
    cut = replace(SPEC, shards=2, server=server)
    stage.server("s0", machine_bytes=2 * GIB)
    stage.server("s1", machine_bytes=GIB)
    assert "model 'net.shard" in refused(stage, WORKER, cut)
    stage = Stage()
    for name in ("s0", "s1"):
        stage.server(name, machine_bytes=2 * GIB)
    assert any(isinstance(one, Welcome) for one in stage.worker("a", spec=cut))


def test_another_process_of_a_server_s_name_is_refused_without_memory_for_its_models() -> None:
    stage = Stage()
    stage.server("s", machine_bytes=4 * GIB)
    stage.worker("a", spec=SPEC)
    stage.silent("s")
    said = refused(stage, member("s", Role.SERVER, 2, address="s:1"), machine_bytes=GIB)
    assert "server 's' is to hold models that need 3.0 GiB of memory; its machine has 1.0 GiB" in said


def test_a_container_s_limit_is_what_its_machine_has(tmp_path: Path) -> None:
    limited, free = tmp_path / "limited", tmp_path / "free"
    limited.write_text("123456789\n")
    free.write_text("max\n")
    assert machine_bytes([str(limited), str(free), str(tmp_path / "missing")]) == 123456789
    assert machine_bytes([str(free)]) > 123456789
