"""Every promise of a plan, broken on purpose: the checker says which and where."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.network import Path, Piece, Profile, down_link, up_link
from mlfabric.planning.checking import validate
from mlfabric.planning.checking.carriage import BIT_NS_PER_BYTE
from mlfabric.planning.checking.leads import check_divergence
from mlfabric.planning.checking.view import View
from mlfabric.planning.plan import Deferred, Group, Plan, Punt, ReplicaStep, Toward
from mlfabric.planning.problem import (
    Aggregator,
    Batch,
    DivergenceBound,
    FabricState,
    Pending,
    PlannerConfig,
    Replica,
    Shape,
)
from mlfabric.protocol import GetId
from tests.planning.handmade import (
    LATENCY_NS,
    MS,
    NOW_NS,
    SIZE,
    V_INIT,
    a_full_plan,
    changed,
    moved,
    next_commit,
    plan_of,
    uid,
    with_commit,
    with_transfer,
)
from tests.planning.worlds import an_update, random_fabric

Change: TypeAlias = Callable[[Plan], Plan]
W1, TO_A, TO_A_2, STORED, W4, CHAIN, OLD, TO_B, _, TO_R, G1, TO_D, G2 = range(13)


def test_a_plan_that_keeps_its_promises_is_valid_and_the_network_is_as_before() -> None:
    plan, network = a_full_plan()
    before = {
        link: (list(network.free_line(link).times), list(network.free_line(link).values)) for link in network.links
    }
    plan.validate(network)
    validate(plan, network)
    assert before == {link: (network.free_line(link).times, network.free_line(link).values) for link in network.links}


def shifted(plan: Plan, index: int, by_ns: int) -> Plan:
    """The same plan with one transfer earlier or later, its commit times as they were."""
    transfer = plan.transfers[index]
    return with_transfer(plan, index, profile=moved(transfer.profile, by_ns), arrive_ns=transfer.arrive_ns + by_ns)


def resized(plan: Plan, index: int, size_bytes: int) -> Plan:
    """The same plan with one transfer of one piece and another size, at the same rate, that starts as before."""
    (piece,) = plan.transfers[index].profile.pieces
    end_ns = piece.start_ns - (-size_bytes * BIT_NS_PER_BYTE // piece.bps)
    profile = Profile(piece.start_ns, end_ns, (piece._replace(end_ns=end_ns),))
    return with_transfer(plan, index, size_bytes=size_bytes, profile=profile, arrive_ns=end_ns + LATENCY_NS)


def with_piece(plan: Plan, index: int, *pieces: Piece) -> Plan:
    profile = Profile(pieces[0].start_ns, pieces[-1].end_ns, pieces)
    return with_transfer(plan, index, profile=profile, arrive_ns=profile.end_ns + LATENCY_NS)


def changing(what: str) -> Callable[..., Change]:
    """Return a function that makes a change of one transfer, commit, group ... of a plan."""
    return lambda index, **changes: lambda plan: changed(plan, what, index, **changes)


transfer, commit, group, step, answer = map(changing, ("transfers", "commits", "groups", "replica_steps", "gets"))


def state(**changes: object) -> Change:
    return lambda plan: replace(plan, state=replace(plan.state, **changes))  # type: ignore[arg-type]


def config(**changes: object) -> Change:
    return lambda plan: replace(plan, config=replace(plan.config, **changes))  # type: ignore[arg-type]


def with_candidate(plan: Plan, worker: str, **changes: object) -> Plan:
    updates = [replace(c, **changes) if c.update.worker == worker else c for c in plan.batch.updates]  # type: ignore[arg-type]
    return replace(plan, batch=replace(plan.batch, updates=tuple(updates)))


def without_reason(plan: Plan, what: str) -> Plan:
    first, *others = getattr(plan, what)
    return replace(plan, **{what: [replace(first, reason=" "), *others]})  # type: ignore[arg-type]


def swapped(plan: Plan) -> Plan:
    """The two members of the last group change places, the group does not know."""
    return with_commit(with_commit(plan, 3, update=uid("w5")), 4, update=uid("w4"))


def without_last_step(plan: Plan) -> Plan:
    """The same plan without its second replica step, whose transfers stay; nobody waits for it."""
    early = with_commit(plan, 2, commit_ns=plan.commits[2].arrive_ns)
    more = [Punt(update=uid(w), reason="later") for w in ("w1", "w2")]
    return replace(early, replica_steps=plan.replica_steps[:1], punts=[*plan.punts, *more])


def with_another(plan: Plan, index: int) -> Plan:
    """The same plan with a transfer twice, the second time after all others."""
    return replace(plan, transfers=[*plan.transfers, shifted(plan, index, 60 * MS).transfers[index]])


def path(source: str, destination: str) -> Path:
    return (up_link(source), down_link(destination))


A_GIGABIT = 10**9
BROKEN: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "another path": (
        transfer(W1, path=path("w2", "s")),
        r"transfer 0 \(UPDATE, w1 to s\) takes .*w2.* the network's path is .*w1",
    ),
    "an early start": (
        transfer(W1, ready_ns=NOW_NS + 1),
        r"transfer 0 \(UPDATE, w1 to s\) starts at 5000000, ready at 5000001",
    ),
    "a start in the past": (state(now_ns=NOW_NS + 1), r"transfer 0 .* starts at 5000000, ready at 5000001"),
    "an update sent before its worker has it": (
        lambda p: with_candidate(p, "w1", ready_ns=NOW_NS + 1),
        r"transfer 0 .* starts at 5000000, w1#0 is ready at 5000001",
    ),
    "a byte too few": (
        lambda p: with_piece(p, W1, Piece(NOW_NS, NOW_NS + 8 * MS - 8, A_GIGABIT)),
        r"carries 999999\.000000 bytes, it should be 1000000",
    ),
    "a nanosecond too long": (
        lambda p: with_piece(p, W1, Piece(NOW_NS, NOW_NS + 8 * MS + 1, A_GIGABIT)),
        r"carries 1000000\.125000 bytes, it should be 1000000: it ends too late",
    ),
    "pieces that overlap": (
        lambda p: with_piece(p, W1, Piece(5 * MS, 13 * MS, A_GIGABIT // 2), Piece(9 * MS, 17 * MS, A_GIGABIT // 2)),
        "pieces that overlap",
    ),
    "a piece without a rate": (lambda p: with_piece(p, W1, Piece(NOW_NS, 13 * MS, 0)), "a piece without a rate"),
    "a piece of no length": (
        lambda p: with_piece(p, W1, Piece(NOW_NS, NOW_NS, 1), Piece(NOW_NS, 13 * MS, A_GIGABIT)),
        "a piece of no length",
    ),
    "pieces not merged": (
        lambda p: with_piece(p, W1, Piece(NOW_NS, 9 * MS, A_GIGABIT), Piece(9 * MS, 13 * MS, A_GIGABIT)),
        "pieces that should be one",
    ),
    "a profile that ends apart from its pieces": (
        lambda p: with_transfer(
            p, W1, profile=Profile(NOW_NS, 14 * MS, p.transfers[W1].profile.pieces), arrive_ns=14 * MS + LATENCY_NS
        ),
        "lasts from 5000000 to 14000000, its pieces from 5000000 to 13000000",
    ),
    "an arrival without latency": (
        transfer(W1, arrive_ns=13 * MS),
        "transfer 0 .* arrives at 13000000, end and latency make it 13100000",
    ),
    "a profile that nobody reserved": (transfer(W1, planned=False), "no update of it is in flight"),
    "two at once on one link": (
        lambda p: shifted(p, TO_A_2, -1),
        r"link a down at 12999999: 2000000000 bit/s are taken, 1000000000 are free; by transfer 1 .*, transfer 2",
    ),
    "a sum that leaves too early": (
        lambda p: shifted(changed(p, "transfers", STORED, ready_ns=0), STORED, -1),
        r"transfer 3 \(SUM, a to s\) of transfer 2 .*: it starts at 21099999, that arrives at 21100000",
    ),
    "a stream that overtakes its input": (
        lambda p: shifted(changed(p, "transfers", W4, ready_ns=37 * MS), W4, 3 * MS),
        r"transfer 5 \(SUM, w5 to s\) of transfer 4 .*: at \d+ it has sent more than has arrived, less a chunk",
    ),
    "an input that ends elsewhere": (
        transfer(STORED, inputs=(W1, TO_A_2)),
        r"transfer 3 .* has input transfer 0 .*, which does not end at its source",
    ),
    "an input of another stripe": (transfer(TO_A, stripe=1), r"transfer 3 .* of stripe 0 has input transfer 1 .* of 1"),
    "an input that comes later": (transfer(TO_A, inputs=(STORED,)), "has input 3; inputs come first"),
    "a member out of nowhere": (
        transfer(STORED, members=(uid("w2"), uid("w3"), uid("w7"))),
        r"transfer 3 .* carries w7#0, which is at w7, and no input brings it",
    ),
    "a member that is unknown": (
        transfer(W1, members=(uid("w1"), uid("w9"))),
        "carries w9#0, which is not in the batch and not pending",
    ),
    "a member that got lost": (transfer(STORED, members=(uid("w2"),)), r"transfer 3 .* leaves out w3#0 of its inputs"),
    "a member twice": (transfer(STORED, members=(uid("w2"), uid("w3"), uid("w3"))), "names a member twice"),
    "an input twice": (transfer(STORED, inputs=(TO_A, TO_A, TO_A_2)), r"transfer 3 .* gets w2#0 more than once"),
    "no member": (transfer(W1, members=()), "carries no update"),
    "a sum that lacks a tensor": (
        lambda p: resized(p, STORED, SIZE),
        r"transfer 3 .* has 1000000 bytes, its 2 updates make 2000000",
    ),
    "a model that grows on its way": (
        lambda p: resized(p, G2, SIZE + 1),
        r"transfer 12 \(MODEL, d to w2\) hands on 1000001 bytes of 1000000",
    ),
    "a sum by somebody who may not": (
        state(aggregators=(Aggregator(host="w5"),)),
        r"transfer 3 .* is a sum, but a is no aggregator for the primary",
    ),
    "a sum for the replica by a host that is no aggregator": (
        lambda p: state(aggregators=p.state.aggregators[:2])(p),
        "but b is no aggregator for the replica",
    ),
    "more than an aggregator takes": (
        state(aggregators=(Aggregator(host="a", most_updates=1), Aggregator(host="w5"))),
        "is a sum of 2, a takes 1 at most",
    ),
    "a model handed on by somebody who may not": (
        state(distributors=()),
        "d hands a model on to 1, but is no distributor",
    ),
    "more than a distributor takes": (
        lambda p: with_another(state(distributors=(Aggregator(host="d", most_updates=1),))(p), G2),
        "d hands a model on to 2, it takes 1 at most",
    ),
    "an update forgotten": (lambda p: replace(p, drops=[]), "w6#0 is committed, dropped or deferred 0 times"),
    "an update settled twice": (
        lambda p: replace(p, drops=[*p.drops, *p.drops]),
        "w6#0 is committed, dropped or deferred 2 times",
    ),
    "an update that nobody asked for": (
        lambda p: replace(p, drops=[*p.drops, replace(p.drops[0], update=uid("w9"))]),
        "w9#0: settled, but not in the batch",
    ),
    "a drop without a reason": (lambda p: without_reason(p, "drops"), "the drop of w6#0 has no reason"),
    "a commit without a reason": (lambda p: without_reason(p, "commits"), "the commit of w1#0 has no reason"),
    "a punt without a reason": (lambda p: without_reason(p, "punts"), "the punt of w3#0 has no reason"),
    "a deferral without a reason": (lambda p: without_reason(p, "deferred"), "the deferral of w7#0 has no reason"),
    "an answer without a reason": (lambda p: without_reason(p, "gets"), r"the answer to w1\?0 has no reason"),
    "a position left out": (commit(1, position=3), "w2#0 has position 3, it is number 2"),
    "a wrong version": (commit(1, version=12), "w2#0 is applied to version 12, it should be 11"),
    "a wrong delay": (commit(1, tau=0), "w2#0 has delay 0, it should be 1"),
    "a wrong deadline": (commit(1, deadline=8), "w2#0 has deadline 8, it should be 7"),
    "a deadline where none is": (config(tau_max=None), "w1#0 has deadline 7, but no delay bound"),
    "a position after the deadline": (
        lambda p: with_commit(with_candidate(p, "w2", computed_from=V_INIT - 6), 1, tau=7, deadline=1),
        "w2#0 has position 2, its deadline is 1",
    ),
    "a commit before the one in front": (
        commit(0, commit_ns=40 * MS),
        "w1#0 is committed at 40000000; nothing that it waits for happens then",
    ),
    "commits out of order": (
        lambda p: changed(p, "commits", 3, commit_ns=p.commits[2].commit_ns - 1),
        "w4#0 is committed at .*, before the one in front of it at",
    ),
    "a commit before its arrival": (
        commit(0, commit_ns=NOW_NS),
        "w1#0 is committed at 5000000, it arrives at 13100000",
    ),
    "commits out of the order of their group": (
        swapped,
        "groups one after the other are .*, w4#0, w5#0; commits .*, w5#0, w4#0",
    ),
    "a shape that was not allowed": (
        config(shapes=frozenset({Shape.STORED})),
        "group 2 has shape TREE, which was not allowed",
    ),
    "a direct group of two": (group(1, shape=Shape.DIRECT), "group 1 is direct, but has 2 members"),
    "an empty group": (
        lambda p: replace(p, groups=[*p.groups, Group(members=(), shape=Shape.DIRECT, last=())]),
        "group 3 is empty",
    ),
    "a group that ends elsewhere": (group(0, last=(TO_A,)), r"transfer 1 .* ends group 0, but not at server s"),
    "a group that ends with nothing": (group(0, last=()), "group 0 ends with 0 transfers; one is right"),
    "a group that ends with another's sum": (group(0, last=(STORED,)), "ends group 0 of w1#0, but carries w2#0, w3#0"),
    "a group with a stranger": (
        group(2, members=(uid("w4"), uid("w5"), uid("w6"))),
        "w6#0: in a group, but neither committed nor deferred",
    ),
    "a commit in another group": (commit(0, group=1), "w1#0 is not in its group 1"),
    "a commit in no group": (commit(0, group=7), "w1#0 is in group 7, which there is not"),
    "an arrival apart from the group's": (
        commit(0, arrive_ns=12 * MS, commit_ns=12 * MS),
        "w1#0 arrives at 12000000, its group at 13100000",
    ),
    "a replica step out of order": (
        lambda p: replace(p, replica_steps=list(reversed(p.replica_steps))),
        "replica steps have w1#0, w2#0, old#0; the order of commits is old#0, w1#0",
    ),
    "an update replicated and punted": (
        lambda p: replace(p, punts=[*p.punts, Punt(update=uid("w1"), reason="later")]),
        "w1#0: replicated or punted more than once",
    ),
    "an update neither replicated nor punted": (
        lambda p: replace(p, punts=p.punts[:-1]),
        "w5#0: neither replicated nor punted",
    ),
    "a punt of a stranger": (
        lambda p: replace(p, punts=[*p.punts, Punt(update=uid("w9"), reason="later")]),
        "w9#0: replicated or punted, but neither in the batch nor pending",
    ),
    "a replica step without its bytes": (step(1, transfers=(TO_B,)), "the replica step of w1#0, w2#0 is brought none"),
    "a replica step that is early": (
        step(0, arrive_ns=20 * MS),
        "the replica step of old#0 arrives at 20000000, its transfers at 21100000",
    ),
    "a replica transfer for the primary": (
        transfer(OLD, toward=Toward.WORKERS),
        "the replica step of old#0 has a transfer toward the workers",
    ),
    "a replica transfer that is for nothing": (
        without_last_step,
        r"transfer 9 \(SUM, b to r\) is for nothing: no replica step needs it",
    ),
    "replication without a replica": (
        lambda p: replace(state(replica=None)(p), transfers=p.transfers[:OLD]),
        "there is no replica, but something is replicated or punted",
    ),
    "a lead that is too long": (
        config(div_max=DivergenceBound(norm=7.1, updates=2)),
        r"at the commit of w5#0 \(53200000\) the primary is 3 updates ahead of the replica, the bound is 2",
    ),
    "a lead that is too wide": (
        config(div_max=DivergenceBound(norm=7.0)),
        r"at the commit of w5#0 \(53200000\) the primary may be 7\.03125 from the replica, the bound is 7",
    ),
    "a commit that did not wait for the replica": (
        lambda p: changed(p, "commits", 2, commit_ns=p.commits[2].arrive_ns),
        r"at the commit of w3#0 \(37200000\) the primary may be 7\.125 from the replica, the bound is 7\.1",
    ),
    "a commit that waits for no reason": (
        config(div_max=DivergenceBound(norm=7.2)),
        "w3#0 is committed at 45200000, the bound lets it at 37200000 already",
    ),
    "a get forgotten": (lambda p: replace(p, gets=p.gets[:1]), r"the get w2\?0 is answered or deferred 0 times"),
    "a get settled twice": (lambda p: replace(p, gets=[*p.gets, p.gets[0]]), r"the get w1\?0 is .* deferred 2"),
    "a get answered at another host": (
        transfer(G1, destination="w3", path=path("s", "w3")),
        r"transfer 10 .* answers w1\?0, whose host is w1",
    ),
    "a get answered in part": (transfer(G1, get=None), r"the get w1\?0 is answered by transfer 10"),
    "a get answered by a smaller model": (
        lambda p: resized(p, G1, SIZE // 2),
        r"the get w1\?0 is answered with 500000 bytes, it wants 1000000",
    ),
    "a get answered too early": (
        answer(0, arrive_ns=12 * MS),
        r"the get w1\?0 is answered at 12000000, its model is there at 13100000",
    ),
    "a get answered by no transfer": (answer(0, transfer=99), r"the get w1\?0 is answered by no transfer"),
    "a get answered before it was ready": (
        lambda p: replace(
            p, batch=replace(p.batch, gets=(replace(p.batch.gets[0], ready_ns=NOW_NS + 1), *p.batch.gets[1:]))
        ),
        r"transfer 10 .* starts at 5000000, w1\?0 is ready at 5000001",
    ),
    "a get of a stranger": (
        lambda p: replace(p, deferred=[*p.deferred, Deferred(what=GetId("w9", 0, 0), reason="later")]),
        r"w9\?0: settled, but not in the batch",
    ),
    "a get answered twice over": (
        lambda p: with_another(p, G1),
        r"the get w1\?0 is answered by transfers 10, 13; one is right",
    ),
    "a model from nowhere": (
        transfer(G1, source="w5", path=path("w5", "w1")),
        r"transfer 10 \(MODEL, w5 to w1\) brings a model from nowhere: w5 is not the server",
    ),
    "a model of two models": (transfer(G2, inputs=(TO_D, TO_D)), r"transfer 12 .* hands on 2 models"),
    "a model for nobody": (
        lambda p: with_another(p, TO_D),
        "transfer 13 .* is for nothing: it answers no get and is not handed on",
    ),
    "a model toward the primary": (transfer(TO_D, toward=Toward.PRIMARY), "transfer 11 .* goes toward the primary"),
    "a negative size": (transfer(W1, size_bytes=-1), "transfer 0 .* has a size of -1 bytes"),
    "time for nothing": (transfer(W1, size_bytes=0), "transfer 0 .* needs no link's time, but takes 1 pieces of it"),
    "a replica step that ends elsewhere": (
        transfer(OLD, destination="w7", path=path("w1", "w7")),
        "the replica step of old#0 has a transfer that ends at w7, not at r",
    ),
    "a group that ends with an unknown transfer": (
        group(0, last=(99,)),
        "group 0 ends with transfer 99, which there is not",
    ),
    "an aggregator that makes two sums": (lambda p: with_another(p, STORED), "a serves 2 groups toward the primary"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_promise_is_named(broken: str) -> None:
    change, sentence = BROKEN[broken]
    plan, network = a_full_plan()
    with pytest.raises(AssertionError, match=sentence):
        validate(change(plan), network)


def test_a_transfer_that_is_for_nothing_is_named() -> None:
    plan, network = a_full_plan()
    again = replace(shifted(plan, W1, 55 * MS).transfers[W1])
    with pytest.raises(AssertionError, match=r"transfer 13 \(UPDATE, w1 to s\) is for nothing: no group ends with it"):
        validate(replace(plan, transfers=[*plan.transfers, again]), network)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_a_plan_does_not_fit_on_links_that_have_a_bit_per_second_less_for_a_nanosecond(seed: int) -> None:
    """By hand the checker is shown few plans; these have rates that change, and links that are shared."""
    rng = Random(seed)
    fabric = random_fabric(rng, kinds=["tame"])
    plan, network = fabric.plan(), fabric.network.copy()
    taken = [(link, piece) for t in plan.transfers if t.planned for link in t.path for piece in t.profile.pieces]
    if not taken:
        return
    link, (start_ns, end_ns, _) = rng.choice(taken)
    at_ns = rng.choice([start_ns, end_ns - 1])
    used = sum(bps for other, (start, end, bps) in taken if other == link and start <= at_ns < end)
    less = network.free_line(link).at(at_ns) - used + 1
    network.reserve("others", (link,), Profile(at_ns, at_ns + 1, (Piece(at_ns, at_ns + 1, less),)))
    with pytest.raises(AssertionError, match=f"link {link} at {at_ns}: {used} bit/s are taken, {used - 1} are free"):
        plan.validate(network)


# The divergence bound, against the formula of the design as it stands there.


def formula(history: float, norms: list[float], gamma: float) -> float:
    n = len(norms)
    after = sum((1 - gamma ** (n - j)) / (1 - gamma) * norm for j, norm in enumerate(norms))
    return sum(gamma**i for i in range(1, n + 1)) * history + after


@given(
    pending=st.lists(st.floats(0, 5), max_size=3),
    norms=st.lists(st.floats(0.1, 5), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8)), max_size=3),
    gamma=st.sampled_from([0.0, 0.5, 0.9]),
    history=st.floats(0, 3),
    slack=st.sampled_from([0.999, 1.001]),
)
def test_the_bound_at_every_commit_is_the_formula_over_the_lead(
    pending: list[float], norms: list[float], steps: list[tuple[int, int]], gamma: float, history: float, slack: float
) -> None:
    ids = [uid(f"p{n}") for n in range(len(pending))] + [uid(f"u{n}") for n in range(len(norms))]
    made: list[ReplicaStep] = []
    for count, at_ns in steps:
        first = sum(len(s.members) for s in made)
        made.append(ReplicaStep(members=tuple(ids[first : first + count]), arrive_ns=at_ns, transfers=()))
    expected = []
    for n in range(len(norms)):
        there_ns = itertools.accumulate((step.arrive_ns for step in made), max)
        ends = itertools.accumulate(len(step.members) for step in made)
        usable = [end for at_ns, end in zip(there_ns, ends, strict=True) if at_ns <= n and end <= len(pending) + n + 1]
        held = max(usable, default=0)
        past = norms[: max(0, held - len(pending))]
        at_begin = history * gamma ** len(past) + sum(u * gamma ** (len(past) - 1 - i) for i, u in enumerate(past))
        exact = sum(pending[held:])
        expected.append(exact + formula(at_begin, norms[len(past) : n + 1], gamma))
    plan = a_lead(pending, norms, made, gamma, history, max(expected) * slack)
    if slack > 1 or max(expected) == 0:
        check_divergence(View.of(plan))
    else:
        with pytest.raises(AssertionError, match="the primary may be"):
            check_divergence(View.of(plan))


def test_half_a_step_is_of_no_use_and_its_members_are_committed_at_once() -> None:
    """A step of two is there before both commits: it counts from the second on, so with a bound of 0 both wait."""
    step = ReplicaStep(members=(uid("u0"), uid("u1")), arrive_ns=0, transfers=())
    plan = a_lead([], [1.0, 1.0], [step], 0.0, 0.0, 0.0)
    with pytest.raises(AssertionError, match=r"at the commit of u0#0 \(0\) the primary may be 1 from the replica"):
        check_divergence(View.of(plan))
    check_divergence(View.of(with_commit(plan, 0, commit_ns=1)))
    with pytest.raises(AssertionError, match=r"u0#0 is committed at 2, the bound lets it at 1 already"):
        check_divergence(View.of(with_commit(with_commit(plan, 0, commit_ns=2), 1, commit_ns=2)))


def a_lead(
    pending: list[float], norms: list[float], steps: list[ReplicaStep], gamma: float, history: float, bound: float
) -> Plan:
    """A plan of nothing but commits, one each ns from 0 on, and replica steps."""
    updates = [an_update(f"u{n}", norm=norm) for n, norm in enumerate(norms)]
    commits = [replace(next_commit([], c.update, n), commit_ns=n) for n, c in enumerate(updates)]
    old = tuple(
        Pending(update=uid(f"p{n}"), source="x", size_bytes=1, step_norm=norm) for n, norm in enumerate(pending)
    )
    return plan_of(
        batch=Batch(updates=tuple(updates)),
        state=FabricState(now_ns=0, server="s", replica=Replica(host="r", pending=old, history_norm=history)),
        config=PlannerConfig(gamma=gamma, div_max=DivergenceBound(norm=bound)),
        commits=commits,
        replica_steps=steps,
    )
