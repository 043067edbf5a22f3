"""What members may say wrongly: the scheduler lives, keeps its invariants, and what it knew stays as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.model.specs import Layout, Method, ModelSpec, Role, RuleSpec, TensorSpec
from mlfabric.protocol import (
    AppliedIds,
    Commit,
    CommitsReported,
    DropReason,
    Following,
    GetId,
    GetRequested,
    HeldBack,
    InitialReceived,
    LinkProbed,
    MemberEvent,
    MemberJoined,
    MemberLost,
    MemberSilent,
    MemoryReported,
    ModelVersion,
    NotKept,
    PushRequested,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    ReplicaReported,
    RoundArrived,
    RoundBroken,
    RoundId,
    RoundKept,
    RoundSlow,
    Send,
    ServerHolds,
    SumId,
    Tick,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
    WorkerHolds,
)

from .stage import LAYOUT, MS, SPEC, Stage, committed, holds, member, push

REDUCED = ModelSpec(
    name="reduced", layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)), method=Method.ALL_REDUCE
)


@pytest.mark.parametrize("wrong", [{"norm": float("nan")}, {"norm": -1.0}, {"size_bytes": 3}])
def test_an_update_that_is_asked_for_again_in_words_that_cannot_be_stays_planned_as_it_was(
    wrong: dict[str, Any],
) -> None:
    stage = Stage().trained("a", "b")
    (sent,) = [i for i in stage.ask(push("a")) if isinstance(i, Send)]

    assert stage.ask(replace(push("a"), **wrong)) == []
    stage.wait(1)
    stage.ask(push("b"))
    stage.wait(200)

    assert stage.tick() is not None
    assert stage.pushes.planned[sent.update].request == push("a")


def test_a_gradient_whose_step_is_beyond_all_numbers_is_planned_and_left_to_the_server() -> None:
    stage = Stage().trained("a", spec=replace(SPEC, rule=RuleSpec(lr=1000.0)))

    assert [type(i) for i in stage.ask(push("a", norm=1.7e308)) if isinstance(i, Send)] == [Send]


@pytest.mark.parametrize(
    "said",
    [
        replace(committed(UpdateId("a", 1, 0), 1), server="other"),
        InitialReceived(server="other", model="net", version=ModelVersion(7, 9)),
        replace(holds(9), server="other"),
    ],
)
def test_a_server_has_no_say_about_a_model_that_another_one_holds(said: MemberEvent) -> None:
    stage = Stage().trained("a")
    stage.server("other")
    stage.ask(push("a"))

    assert stage.tell(said) == []
    assert stage.pushes.server == "s"
    assert stage.pushes.version == ModelVersion(1, 0)
    assert set(stage.pushes.planned) == {UpdateId("a", 1, 0)}


few = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 4, 2**64 - 1))
models = st.sampled_from(("net", "net", "net", "reduced", "none"))
trainers, reducers = st.sampled_from("ab"), st.sampled_from("xyz")
servers, anyone = st.sampled_from("sst"), st.sampled_from("abxyzsgr")
versions = st.builds(ModelVersion, st.sampled_from((1, 1, 0, 2)), few)
updates = st.builds(UpdateId, trainers, st.sampled_from((1, 1, 2)), few)
gets = st.builds(GetId, trainers, st.just(1), few)
sums = st.builds(SumId, st.sampled_from((1, 1, 2)), few)
some_ns = st.integers(1, 2**64 - 1)
rounds = st.builds(RoundId, st.sampled_from((1, 1, 2)), few)
pushes = st.builds(
    PushRequested,
    update=updates,
    model=models,
    size_bytes=st.sampled_from((LAYOUT.size_bytes,) * 4 + (3,)),
    computed_from=versions,
    norm=st.sampled_from((1.0, 1.0, 0.0, 1.7e308, -1.0, float("nan"))),
    kind=st.sampled_from((UpdateKind.GRADIENT,) * 4 + (UpdateKind.INITIAL,)),
    resolved_below=few,
)
reduces = st.builds(
    ReduceRequested,
    reduce=st.builds(ReduceId, reducers, st.just(1), few),
    model=st.sampled_from(("reduced", "reduced", "net", "none")),
    size_bytes=st.sampled_from((16, 16, 0, 8, 4_000_000)),
    dtype=st.sampled_from(("float32", "float32", "float64")),
    op=st.sampled_from(ReduceOp),
    together=st.sampled_from((1, 2, 3, 9)),
    settled=st.none() | rounds,
    arrived=st.none() | rounds,
)
commits = st.builds(
    Commit,
    update=updates,
    version=versions,
    tau=st.integers(0, 4),
    lr=st.just(0.1),
    step_norm=st.sampled_from((1.0, 9e307)),
)
few_updates = st.lists(updates, max_size=2).map(tuple)
applied = st.builds(AppliedIds, worker=trainers, incarnation=st.just(1), low=few, recent=st.just(()))
back_again: st.SearchStrategy[MemberEvent] = st.sampled_from(
    (
        *(MemberJoined(member=member(name, Role.WORKER), spec=SPEC, holds_initial=True) for name in "ab"),
        *(MemberJoined(member=member(name, Role.WORKER, address=f"{name}:1"), spec=REDUCED) for name in "xyz"),
        MemberJoined(member=member("s", Role.SERVER, address="s:1"), held=(SPEC,), server_epochs=(1,)),
        MemberJoined(member=member("g", Role.AGGREGATOR, address="g:1")),
        MemberJoined(member=member("r", Role.REPLICA, address="r:1"), follows=Following(server="s", updates=2)),
    )
)
said: st.SearchStrategy[MemberEvent] = st.one_of(
    pushes,
    reduces,
    st.just(Tick()),
    st.just(Tick()),
    st.builds(GetRequested, get=gets, model=models, min_version=versions, after_update=st.none() | updates),
    st.builds(RoundArrived, worker=anyone, model=models, round=rounds),
    st.builds(RoundBroken, worker=anyone, model=models, round=rounds, detail=st.just("")),
    st.builds(RoundSlow, worker=anyone, model=models, round=rounds, left_ns=some_ns, usual_ns=some_ns),
    st.builds(RoundKept, worker=anyone, model=models, round=rounds, kept=st.just(()) | st.just(((0, 16), (32, 48)))),
    st.builds(LinkProbed, worker=anyone, model=models, round=rounds, source=anyone, bps=st.integers(1, 2**64 - 1)),
    st.builds(CommitsReported, server=servers, model=models, commits=st.lists(commits, max_size=2).map(tuple)),
    st.builds(InitialReceived, server=servers, model=models, version=versions),
    st.builds(
        TransferEnded,
        member=anyone,
        model=models,
        transfer=updates | gets | sums,
        end=st.sampled_from(TransferEnd),
        cause=st.none() | st.sampled_from(DropReason),
    ),
    st.builds(ReplicaReported, replica=anyone, model=models, term=few, version=versions, held=few_updates),
    st.builds(HeldBack, server=servers, model=models, transfers=few_updates, alone=st.booleans(), detail=st.just("")),
    st.builds(NotKept, member=anyone, model=models, term=few, detail=st.just("")),
    st.builds(MemoryReported, name=anyone, kinds=st.just((("sums", 2**64 - 1),))),
    st.builds(
        WorkerHolds,
        worker=anyone,
        pushes=st.lists(pushes, max_size=1).map(tuple),
        gets=st.just(()),
        reduces=st.lists(reduces, max_size=1).map(tuple),
    ),
    st.builds(
        ServerHolds,
        server=servers,
        spec=st.just(SPEC),
        version=versions,
        initialised=st.booleans(),
        applied=st.lists(applied, max_size=1).map(tuple),
        received=few_updates,
        epoch_base=few,
        replica=st.sampled_from(("", "r", "q")),
    ),
    st.builds(MemberSilent, name=anyone, incarnation=st.just(1)),
    st.builds(MemberLost, name=anyone, incarnation=st.just(1), detail=st.just("its process is stopped")),
    back_again,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(said, st.sampled_from((0, 0, 1, 30, 200))), max_size=40))
def test_whatever_members_say_the_scheduler_lives_and_keeps_its_invariants(talk: list[tuple[MemberEvent, int]]) -> None:
    stage = Stage()
    stage.server("t")
    stage.trained("a", "b")
    for name in "xyz":
        stage.worker(name, spec=REDUCED, address=f"{name}:1")
    stage.aggregator("g")
    stage.tell(MemberJoined(member=member("r", Role.REPLICA, address="r:1"), follows=Following(server="s", updates=2)))
    for event, ms in talk:
        stage.now_ns += ms * MS
        stage.tell(event)
