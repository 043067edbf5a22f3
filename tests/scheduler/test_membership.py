"""Who is let in, who is refused with which words, who brings the weights, what happens when a member comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.specs import Layout, Method, Role, RuleKind, RuleSpec, TensorKind, TensorSpec
from mlfabric.network import up_link
from mlfabric.protocol import (
    AppliedIds,
    Committed,
    HostModel,
    Initialise,
    LinkRate,
    LinksReported,
    MemberJoined,
    MemoryReported,
    ModelVersion,
    MonitorAt,
    NewServer,
    PeerLost,
    Refuse,
    RefuseReason,
    Resolve,
    TransferEnd,
    Void,
    Welcome,
)
from mlfabric.scheduler.records import MemberState
from tests.scheduler.stage import (
    MS,
    SPEC,
    Stage,
    committed,
    ended,
    expected,
    get,
    holds,
    initial,
    member,
    push,
    sent,
    update,
)


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    stage.state.validate()


SERVES = NewServer(to="a", model="net", server_epoch=1, reason="")


def welcome(name, initialise=False, incarnation=1, tau_max=4, monitor="", server="s"):
    return Welcome(
        to=name,
        incarnation=incarnation,
        term=1,
        tau_max=tau_max,
        server=server,
        initialise=initialise,
        monitor_address=monitor,
        reason="",
        server_epoch=1 if server else 0,
    )


def host_model(spec=SPEC):
    return HostModel(to="s", spec=spec, reason="")


def refusal(stage, event):
    """Return cause and words of the refusal that this event meets."""
    (answer,) = stage.state.handle(event, stage.now_ns)
    assert isinstance(answer, Refuse)
    return answer.cause, answer.reason


def joins(name="a", spec=SPEC, **fields):
    return MemberJoined(member=member(name, Role.WORKER, **fields), spec=spec)


# Who is let in


@pytest.mark.parametrize(("server", "words"), [("", "any server"), ("s", "'s'")])
def test_a_worker_waits_for_a_server_or_for_the_one_that_its_model_names(stage, server, words):
    if server:
        stage.server("other")
    cause, said = refusal(stage, joins(spec=replace(SPEC, server=server)))
    assert cause is RefuseReason.NOT_YET
    assert words in said


def test_the_first_worker_brings_its_model_to_a_server_and_is_asked_for_weights(stage):
    stage.server()
    assert stage.worker("a") == [host_model(), welcome("a", initialise=True)]
    assert stage.worker("b") == [welcome("b")]


def test_a_new_model_goes_to_the_server_with_the_fewest(stage):
    stage.server("s")
    stage.server("t")
    stage.worker("a")
    told = stage.worker("b", spec=replace(SPEC, name="second"))
    assert [i.to for i in told if isinstance(i, HostModel)] == ["t"]


def test_the_default_bound_grows_with_the_workers_and_never_falls(stage):
    free = replace(SPEC, tau_max=None)
    stage.server()
    assert [stage.worker(name, spec=free)[-1].tau_max for name in ("a", "b", "c")] == [2, 4, 6]
    stage.silent("b")
    assert stage.worker("b", spec=free)[-1].tau_max == 6


def test_a_second_process_takes_the_name_of_a_silent_one(stage):
    stage.trained("a")
    stage.ask(push("a"))
    stage.silent("a")
    assert stage.worker("a", incarnation=2) == [welcome("a", incarnation=2)]
    assert stage.state.context.members["a"].tally.committed == 0


W, B = (TensorSpec(name=name, shape=(3,), dtype="float32") for name in "wb")
FIRST = "at the job's first worker"


def other(**fields):
    """Let another worker join with another idea of the model."""
    return joins("b", spec=replace(SPEC, **fields))


@pytest.mark.parametrize(
    ("event", "cause", "words"),
    [
        (joins(incarnation=2), RefuseReason.NAME_TAKEN, "'a' is taken by a live worker on host h-a"),
        (
            other(layout=Layout((W,))),
            RefuseReason.LAYOUT_DIFFERS,
            "w: float32[3] (parameter) against float32[250000]",
        ),
        (other(rule=RuleSpec(lr=0.5)), RefuseReason.OPTIONS_DIFFER, f"rule.lr: 0.5 here, 0.1 {FIRST}; give the same"),
        (other(tau_max=7), RefuseReason.OPTIONS_DIFFER, f"tau_max: 7 here, 4 {FIRST}; give the same"),
        (other(frozen_digest="x"), RefuseReason.OPTIONS_DIFFER, "load the same weights or seed"),
        (
            other(method=Method.SYNCHRONOUS, tau_max=None, rule=RuleSpec(lr=0.5, kind=RuleKind.ADAM)),
            RefuseReason.OPTIONS_DIFFER,
            f"rule.lr: 0.5 here, 0.1 {FIRST}, rule.kind: 'adam' here, 'sgd' {FIRST}, method: 'synchronous' here, "
            f"'asynchronous' {FIRST}; give the same",
        ),
        (joins("b", protocol_version=9), RefuseReason.PROTOCOL_VERSION, "install the same release"),
        (joins("b", spec=replace(SPEC, name="net\n")), RefuseReason.OUT_OF_RANGE, r"model='net\n'"),
        (joins("b", up_bps=1 << 60), RefuseReason.OUT_OF_RANGE, "2**43"),
        (
            MemberJoined(member=member("t", Role.SERVER, address="t:1"), held=(SPEC,), server_epochs=(1,)),
            RefuseReason.NAME_TAKEN,
            "'net' is held by server 's'",
        ),
    ],
)
def test_who_does_not_fit_what_is_here_is_refused_with_the_difference(stage, event, cause, words):
    stage.server()
    stage.worker("a")
    before = dict(stage.state.context.members)
    found, said = refusal(stage, event)
    assert found is cause
    assert words in said
    assert stage.state.context.members == before


def test_a_layout_that_begins_at_the_other_end_says_that_overlap_differs(stage):
    buffer = TensorSpec(name="mean", shape=(3,), dtype="float32", kind=TensorKind.BUFFER)
    stage.server()
    stage.worker("a", spec=replace(SPEC, layout=Layout((W, B, buffer))))
    _, said = refusal(stage, other(layout=Layout((B, W, buffer))))
    assert said == "model 'net': overlap: on at one, off at the other; give the same at all workers"


def test_options_that_are_left_out_agree_with_any(stage):
    stage.server()
    stage.worker("a")
    assert stage.worker("b", spec=replace(SPEC, tau_max=None)) == [welcome("b")]


@pytest.mark.parametrize("field", ["name", "host"])
@pytest.mark.parametrize("odd", ["two\nlines", "a,b", "zero\0", "w" * 20_000])
def test_a_name_that_would_spoil_a_log_a_table_or_a_list_is_refused(stage, field, odd):
    stage.server()
    cause, words = refusal(stage, joins(**{field: odd}))
    assert cause is RefuseReason.OUT_OF_RANGE
    assert f"{field}={odd[:40]!r}" in words
    assert "allowed: printable characters without comma, at most 200" in words
    assert len(words) < 300


def test_a_server_under_another_name_takes_over_a_model_whose_server_is_gone(stage):
    stage.trained("a")
    stage.silent("s")
    stage.server("t", held=(SPEC,))
    stage.tell(replace(holds(3), server="t"))
    told = stage.ask(push("a", computed_from=3))
    assert {i.to for i in told} == {"a", "t"}


# Weights


def test_initial_weights_are_planned_and_the_server_is_asked_whose_they_are(stage):
    stage.server()
    stage.worker("a")
    request = initial("a")
    assert stage.ask(request) == [sent(request, 1, 1), expected(request, 1, 1)]
    stage.tell(ended(update("a"), TransferEnd.RECEIVED))
    void = Void(to="s", model="net", transfer=update("a"), reason="")
    assert stage.weights() == [void]
    stage.tell(committed(update("a"), 0))
    assert not stage.pushes.planned
    assert stage.state.models["net"].delays.total() == 0


def test_another_worker_is_asked_for_weights_when_the_first_falls_silent(stage):
    stage.server()
    stage.worker("a")
    stage.worker("b", holds_initial=False)
    stage.worker("c")
    ask = Initialise(to="c", model="net", reason="")
    assert stage.silent("a") == [ask]
    assert stage.worker("a") == [welcome("a")]


def test_nobody_is_asked_for_weights_once_they_are_here(stage):
    stage.trained("a", "b")
    assert stage.silent("a") == []


def test_weights_wait_for_a_link_that_carries_nothing(stage):
    stage.server()
    stage.worker("a")
    stage.rate("h-a", True, 0)
    assert stage.ask(initial("a")) == []
    assert stage.state.next_wakeup_ns(stage.now_ns) == stage.now_ns + 100 * MS


# Monitors


def test_members_are_told_of_a_monitor_that_comes_and_goes(stage):
    stage.trained("a")
    near, gone = ([MonitorAt(to=name, address=at, reason="") for name in ("a", "s")] for at in ("m:9", ""))
    assert stage.monitor("m", "h-x") == [welcome("m", tau_max=0, monitor="m:9", server=""), *near]
    assert stage.silent("m") == gone


def test_a_member_reports_to_the_monitor_of_its_own_host(stage):
    stage.trained("a", "b")
    stage.monitor("far", "h-x")
    stage.monitor("near", "h-b")
    told = {i.to: i.address for i in stage.monitor("zz", "h-y") if isinstance(i, MonitorAt)}
    assert told["b"] == "near:9"
    assert told["a"] == "far:9"


def test_reported_rates_are_the_links_capacity(stage):
    stage.trained("a")
    rate = LinkRate(host="h-a", up=True, bps=7_000_000, age_ns=0)
    stage.tell(LinksReported(monitor="m", rates=(rate, replace(rate, host="nowhere"))))
    assert stage.state.context.network.rate_bps(up_link("h-a"), stage.now_ns) == 7_000_000


def test_a_report_of_what_was_seen_earlier_than_what_is_known_changes_nothing(stage):
    stage.trained("a")
    network, link = stage.state.context.network, up_link("h-a")
    network.set_rate(link, 5_000_000)
    network.seen((link,), stage.now_ns)
    rate = LinkRate(host="h-a", up=True, bps=7_000_000, age_ns=1_000)
    stage.tell(LinksReported(monitor="m", rates=(rate,)))
    assert network.rate_bps(link, stage.now_ns) == 5_000_000
    stage.tell(LinksReported(monitor="m", rates=(replace(rate, age_ns=0),)))
    assert network.rate_bps(link, stage.now_ns) == 7_000_000


def test_reported_memory_is_kept(stage):
    stage.trained("a")
    stage.tell(MemoryReported(name="s", kinds=(("model", 8),)))
    assert stage.state.context.members["s"].memory_bytes == {"model": 8}


# Coming back


def test_silence_turns_into_having_left(stage):
    stage.trained("a")
    stage.silent("a")
    stage.wait(10_000)
    stage.tick()
    assert stage.state.context.members["a"].state is MemberState.LEFT
    assert stage.worker("a") == [welcome("a")]
    assert stage.state.context.is_here("a")


def test_a_good_bye_is_final_for_what_was_asked(stage):
    stage.trained("a")
    stage.ask(push("a"))
    stage.tell(committed(update("a"), 1))
    stage.left("a")
    assert update("a") not in stage.pushes.settled


@pytest.mark.parametrize("silent_before", [False, True])
def test_a_worker_that_does_not_answer_any_more_counts_as_left_and_its_outcomes_are_kept(stage, silent_before):
    stage.trained("a")
    stage.ask(push("a"))
    stage.tell(committed(update("a"), 1))
    if silent_before:
        stage.silent("a")
    stage.lost("a")
    record = stage.state.context.members["a"]
    assert (record.state, record.lost) == (MemberState.LEFT, "its process is stopped")
    assert update("a") in stage.pushes.settled
    joining = MemberJoined(member=member("a", Role.WORKER), spec=SPEC)
    assert [told.lost for told in stage.tell(joining) if isinstance(told, Welcome)] == [True]
    assert (stage.state.context.members["a"].state, stage.state.context.members["a"].lost) == (MemberState.HERE, "")
    assert [told.lost for told in stage.tell(joining) if isinstance(told, Welcome)] == [False]


def test_a_server_that_does_not_answer_any_more_counts_as_left_in_its_time(stage):
    stage.trained("a", "b")
    stage.aggregator("g")
    told = stage.lost("s")
    assert told == [PeerLost(to=name, address="s:1", reason="") for name in ("a", "b", "g")]
    server = stage.state.context.members["s"]
    assert server.state.value == "silent"
    stage.wait(stage.state.context.config.silence_ns // MS)
    stage.tick()
    assert server.state.value == "left"


def test_what_is_said_of_an_earlier_incarnation_is_no_matter(stage):
    stage.trained("a")
    stage.lost("a", 7)
    stage.silent("a", 7)
    stage.lost("nobody")
    assert stage.state.context.is_here("a")


def test_a_server_that_is_back_hears_again_what_it_has_not_received(stage):
    stage.trained("a", "b")
    there, lost = push("a"), push("b")
    stage.tell(there)
    stage.tell(lost)
    stage.tick()
    stage.silent("s")
    stage.server(held=(SPEC,))
    assert stage.tell(holds(0, received=(update("a"),))) == [sent(lost, 2, 2), expected(lost, 2, 2)]


def test_a_server_that_is_back_hears_voids_and_gets_again(stage):
    stage.trained("a", "b")
    stage.ask(push("a"))
    wanted = stage.ask(get("b"))
    stage.silent("a")
    stage.server(held=(SPEC,))
    void = Void(to="s", model="net", transfer=update("a"), reason="")
    assert stage.tell(holds(0)) == [void, *(replace(i, after=()) if hasattr(i, "after") else i for i in wanted)]


def test_a_server_that_missed_its_model_is_told_of_it_again(stage):
    stage.server()
    stage.worker("a")
    request = initial("a")
    stage.ask(request)
    stage.silent("s")
    again = stage.server()
    ask = Initialise(to="a", model="net", reason="")
    assert again[1:] == [replace(host_model(), epoch=2), sent(request, 1, 1), expected(request, 1, 1), ask]


def test_an_term_begins_with_a_workers_weights_whenever_a_server_comes_without_its_model(stage):
    stage.trained("a", version=7)
    for epoch, incarnation in ((2, 2), (3, 2), (4, 3)):
        stage.silent("s", stage.state.context.members["s"].member.incarnation)
        told = stage.server(incarnation=incarnation)
        assert told[1:] == [replace(host_model(), epoch=epoch), Initialise(to="a", model="net", reason="")]
        assert stage.pushes.version == ModelVersion(epoch, 0)
        assert stage.ask(get("a")) == []


def test_nothing_is_planned_or_refused_before_a_returning_server_has_said_what_it_holds(stage):
    stage.server(held=(SPEC,))
    assert stage.worker("a") == [replace(welcome("a"), server_epoch=0)]
    request = push("a", computed_from=7)
    assert stage.ask(request) == []
    assert stage.tell(holds(7)) == [SERVES]
    assert stage.tick() == [sent(request, 1, 1), expected(request, 1, 1)]


def test_a_returning_server_without_weights_makes_a_worker_bring_them(stage):
    stage.server(held=(SPEC,))
    stage.worker("a")
    ask = Initialise(to="a", model="net", reason="")
    assert stage.tell(holds(0, initialised=False)) == [SERVES, ask]


def test_what_a_returning_server_had_applied_is_resolved_for_who_asked_before(stage):
    stage.server(held=(SPEC,))
    stage.worker("a")
    stage.ask(push("a"))
    version = ModelVersion(1, 5)
    applied = AppliedIds(worker="a", incarnation=1, low=0, recent=((0, version, 2),))
    outcome = Committed(version=version, tau=2)
    resolved = Resolve(to="a", update=update("a"), outcome=outcome, reason="")
    assert stage.tell(holds(5, applied=(applied,))) == [resolved, SERVES]
    for _ in range(2):  # it comes back once more, and says the same
        assert stage.state.models["net"].delays == {2: 1}
        assert stage.state.context.members["a"].tally.committed == 1
        stage.tell(holds(5, applied=(applied,)))


def test_the_bound_of_an_earlier_scheduler_holds_for_what_a_returning_server_had_applied(stage):
    spec = replace(SPEC, tau_max=None)
    stage.server(held=(spec,))
    stage.worker("a", spec=spec)
    stage.ask(push("a"))
    applied = AppliedIds(worker="a", incarnation=1, low=0, recent=((0, ModelVersion(1, 90), 50),))
    stage.tell(holds(90, spec=spec, applied=(applied,)))  # more workers were here when it was planned
    assert stage.state.models["net"].delays == {50: 1}


def test_what_a_returning_server_holds_is_adopted_and_planned_by_nobody_else(stage):
    stage.server(held=(SPEC,))
    stage.tell(holds(3, received=(update("a"),)))
    stage.worker("a")
    stage.worker("b")
    request = push("a", computed_from=1)
    assert stage.says("a", request) == [
        sent(request, 1, 1),
        expected(request, 1, 1),
    ]
    other = push("b", computed_from=3)
    assert stage.ask(other) == [sent(other, 2, 2), expected(other, 2, 2)]


def test_an_adopted_update_of_a_worker_that_never_came_back_does_no_harm(stage):
    stage.server(held=(SPEC,))
    stage.worker("b")
    stage.tell(holds(3, received=(update("gone"),)))
    stage.ask(push("b", computed_from=3))
    stage.silent("s")
    stage.server(held=(SPEC,))
    told = stage.tell(holds(3))
    assert Void(to="s", model="net", transfer=update("gone"), reason="") in told


def test_a_bound_of_an_earlier_schedulers_time_is_taken_over(stage):
    free = replace(SPEC, tau_max=None)
    stage.server(held=(free,))
    stage.worker("a", spec=free)
    stage.tell(holds(9, spec=free, received=(update("a"),)))
    stage.tell(committed(update("a"), 10, tau=7))
    assert stage.pushes.tau_max == 8
