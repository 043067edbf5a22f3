"""Strategies for every value that travels; each stays within what the wire can carry."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from mlfabric.protocol import (
    AppliedIds,
    CancelHandOn,
    CancelReduce,
    CancelServe,
    CancelSum,
    Commit,
    CommitsReported,
    Committed,
    Conclude,
    DrawAnswer,
    Drop,
    Dropped,
    DropReason,
    Expect,
    Expected,
    Fetch,
    Fold,
    Followed,
    FreeModel,
    GetId,
    GetRequested,
    GroupOf,
    HandOn,
    HandOnTo,
    HeldBack,
    HostModel,
    Initialise,
    InitialReceived,
    Instruction,
    JobClaim,
    Keep,
    LinkProbed,
    LinkRate,
    LinksReported,
    Logged,
    Lost,
    MemberEvent,
    MemberLeft,
    MemoryReported,
    ModelFreed,
    ModelVersion,
    MonitorAt,
    NewServer,
    NoteDropped,
    NotKept,
    Outcome,
    Peer,
    PeerLost,
    Prepare,
    Prepared,
    Probe,
    Promote,
    PushRequested,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReducePart,
    ReduceRequested,
    ReduceSettled,
    Release,
    ReplicaReported,
    Replicate,
    Resolve,
    Resume,
    RoundArrived,
    RoundBroken,
    RoundId,
    SamplesDropped,
    SamplesGranted,
    SamplesReported,
    SamplesWanted,
    Seed,
    Send,
    Serve,
    ServerHolds,
    Sum,
    SumId,
    SumInput,
    TransferEnd,
    TransferEnded,
    Unfollowed,
    UpdateId,
    UpdateKind,
    Void,
    Welcome,
    WorkerHolds,
)
from mlfabric.samples import SampleCounts, samples_of
from mlfabric.specs import (
    COUNTER_BYTES,
    DTYPE_BYTES,
    Layout,
    Member,
    Mode,
    ModelSpec,
    MomentumAt,
    Role,
    RuleKind,
    RuleSpec,
    Schedule,
    TensorKind,
    TensorSpec,
)

ME = "node-3"
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
number = st.floats(allow_nan=False)
ticket = st.binary(max_size=16)
update_ids = st.builds(UpdateId, text, u64, u64)
get_ids = st.builds(GetId, text, u64, u64)
sum_ids = st.builds(SumId, u64, u64)
transfer_ids = update_ids | sum_ids
versions = st.builds(ModelVersion, u32, u64)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Committed, version=versions, tau=i64),
    st.builds(Dropped, cause=st.sampled_from(DropReason), detail=text),
    st.builds(Lost, detail=text),
)


def several(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


def some(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, min_size=1, max_size=3).map(tuple)


@st.composite
def sample_runs(draw: st.DrawFn) -> tuple[tuple[int, int, int], ...]:
    """Runs of samples in order; those that touch differ in how often they were trained on."""
    at = 0
    out: list[tuple[int, int, int]] = []
    some_runs = st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**40), st.integers(1, 2**63)), max_size=3)
    for gap, length, drawn in draw(some_runs):
        times = drawn if gap or not out or out[-1][2] != drawn else drawn + 1
        out.append((at + gap, at + gap + length, times))
        at += gap + length
    return tuple(out)


samples = sample_runs().map(lambda runs: samples_of((start, stop) for start, stop, _ in runs))
sample_counts = st.builds(
    SampleCounts,
    runs=sample_runs(),
    dropped=samples,
    lost=samples,
    rollbacks=several(st.tuples(u64, u64, u64)),
    unplaced=u64,
)
kinds_and_dtypes = st.sampled_from(
    [
        *((kind, dtype) for kind in (TensorKind.PARAMETER, TensorKind.BUFFER) for dtype in sorted(DTYPE_BYTES)),
        *((TensorKind.COUNTER, dtype) for dtype in sorted(COUNTER_BYTES)),
    ]
)
tensors = st.builds(
    lambda name, shape, what: TensorSpec(name=name, shape=shape, kind=what[0], dtype=what[1]),
    name=name,
    shape=several(u64),
    what=kinds_and_dtypes,
)
layouts = st.lists(tensors, min_size=1, max_size=3, unique_by=lambda t: t.name).map(lambda ts: Layout(tuple(ts)))


@st.composite
def rated_layouts(draw: st.DrawFn) -> Layout:
    """A layout whose updates bring rates."""
    plain, groups = draw(layouts), draw(st.integers(1, 2**32))
    grouped = tuple(replace(t, group=draw(st.integers(0, groups - 1))) for t in plain.tensors)
    rates = TensorSpec(name="(rates)", shape=(groups, 2), dtype="float64", kind=TensorKind.RATES)
    return Layout((*grouped, rates))


scheduled = {
    "lr": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    "schedule": st.sampled_from(Schedule),
    "warmup_versions": u64,
    "milestones": st.lists(u64, max_size=3).map(sorted).map(tuple),
    "factor": st.floats(0, 1, exclude_min=True),
    "total_versions": st.integers(1, 2**64 - 1),
}
above_0 = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
below_1 = st.floats(0, 1, exclude_max=True)
always = {
    "weight_decay": st.floats(min_value=0, allow_infinity=False),
    "clip_norm": st.floats(min_value=0, allow_infinity=False),
}
sgd = {**scheduled, "momentum": below_1, "momentum_at": st.none() | st.sampled_from(MomentumAt)}
adam = {**scheduled, "beta1": below_1, "beta2": below_1, "epsilon": above_0, "decoupled": st.booleans()}
adadelay = {"smoothness": above_0, "delay_scale": above_0}
rules = st.one_of(
    st.builds(RuleSpec, kind=st.just(RuleKind.SGD), **sgd, **always),
    st.builds(RuleSpec, kind=st.just(RuleKind.ADAM), **adam, **always),
    st.builds(RuleSpec, kind=st.just(RuleKind.ADADELAY), **adadelay, **always),
)


@st.composite
def a_spec(draw: st.DrawFn) -> ModelSpec:
    mode, layout = draw(st.sampled_from(Mode)), draw(layouts | rated_layouts())
    is_half = any(t.kind is TensorKind.PARAMETER and DTYPE_BYTES[t.dtype] < 4 for t in layout.tensors)
    allowed = set(RuleKind) - {RuleKind.ADAM} if is_half else {RuleKind.ADAM} if layout.rate_groups else set(RuleKind)
    assume(not (is_half and layout.rate_groups))
    return ModelSpec(
        name=draw(name),
        layout=layout,
        rule=draw(rules.filter(lambda rule: rule.kind in allowed)),
        mode=mode,
        tau_max=draw(st.none() | st.integers(0, 2**63 - 1)) if mode is Mode.ASYNCHRONOUS else None,
        slack=draw(u64) if mode is Mode.STALE_SYNCHRONOUS else 0,
        server=draw(text),
        workers=draw(u32) if mode in (Mode.SYNCHRONOUS, Mode.STALE_SYNCHRONOUS) else 0,
    )


@st.composite
def a_part(draw: st.DrawFn) -> ModelSpec:
    """A part of a model, or the whole that is cut."""
    tensor = TensorSpec(name=draw(name), shape=(draw(st.integers(20, 99)),), dtype="float64")
    shards = draw(st.integers(1, 5))
    spec = ModelSpec(name=draw(name), layout=Layout((tensor,)), shards=shards)
    return spec.of_shard(draw(st.integers(0, shards - 1))) if shards > 1 and draw(st.booleans()) else spec


specs = a_spec() | a_part()
job_claims = st.builds(
    JobClaim,
    job=st.text("abc-#9", max_size=20),
    workers=st.integers(1, 2**32 - 1),
    keep=st.booleans(),
    resume=st.sampled_from(Resume),
)
members = st.builds(
    Member,
    name=name,
    role=st.sampled_from(Role),
    incarnation=u64,
    host=name,
    address=text,
    up_bps=u64,
    down_bps=u64,
    protocol_version=u32,
)
pushes = st.builds(
    PushRequested,
    update=st.builds(UpdateId, st.just(ME), u64, u64),
    model=text,
    size_bytes=u64,
    computed_from=versions,
    norm=number,
    kind=st.sampled_from(UpdateKind),
    resolved_below=u64,
    samples=samples,
)
gets = st.builds(
    GetRequested,
    get=st.builds(GetId, st.just(ME), u64, u64),
    model=text,
    min_version=versions,
    after_update=st.none() | update_ids,
)
applied = st.builds(AppliedIds, worker=text, incarnation=u64, low=u64, recent=several(st.tuples(u64, versions, i64)))
holds = st.builds(
    ServerHolds,
    server=st.just(ME),
    spec=specs,
    version=versions,
    initialised=st.booleans(),
    applied=several(applied),
    received=several(update_ids),
    epoch_base=st.integers(0, 2**63 - 1),
    replica=text,
    samples=sample_counts,
)
commits = st.builds(Commit, update=update_ids, version=versions, tau=i64, lr=number, step_norm=number, samples=samples)
ends = st.builds(
    TransferEnded,
    member=st.just(ME),
    model=text,
    transfer=update_ids | get_ids | sum_ids,
    end=st.sampled_from(TransferEnd),
    cause=st.none() | st.sampled_from(DropReason),
    detail=text,
)
memory_kinds = st.dictionaries(text, u64, max_size=3).map(lambda kinds: tuple(sorted(kinds.items())))
rounds = st.builds(RoundId, u64, u64)


@st.composite
def a_reduce(draw: st.DrawFn) -> ReduceRequested:
    dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
    return ReduceRequested(
        reduce=draw(st.builds(ReduceId, st.just(ME), u64, u64)),
        model=draw(text),
        size_bytes=draw(st.integers(0, 2**60)) * DTYPE_BYTES[dtype],
        dtype=dtype,
        op=draw(st.sampled_from(ReduceOp)),
        together=draw(st.integers(1, 2**32 - 1)),
        settled=draw(st.none() | rounds),
        arrived=draw(st.none() | rounds),
    )


reduces = a_reduce()
link_rates = st.builds(LinkRate, host=name, up=st.booleans(), bps=u64, age_ns=u64)
events: st.SearchStrategy[MemberEvent] = st.one_of(
    reduces,
    st.builds(RoundArrived, worker=st.just(ME), model=text, round=rounds, up_bps=u64, down_bps=u64),
    st.builds(RoundBroken, worker=st.just(ME), model=text, round=rounds, detail=text),
    st.builds(LinkProbed, worker=st.just(ME), model=text, round=rounds, source=text, bps=st.integers(1, 2**64 - 1)),
    pushes,
    gets,
    st.builds(
        WorkerHolds,
        worker=st.just(ME),
        pushes=several(pushes),
        gets=several(gets),
        reduces=several(reduces),
        clock=st.none() | u64,
        dropped=samples,
        drawn=samples,
    ),
    st.builds(
        SamplesWanted,
        worker=st.just(ME),
        model=text,
        serial=u64,
        count=st.integers(1, 2**64 - 1),
        limit=st.integers(0, 2**62),
        again=st.booleans(),
        returned=samples,
    ),
    st.builds(SamplesDropped, worker=st.just(ME), model=text, samples=samples),
    st.builds(SamplesReported, server=st.just(ME), model=text, counts=sample_counts),
    holds,
    st.builds(CommitsReported, server=st.just(ME), model=text, commits=several(commits)),
    st.builds(InitialReceived, server=st.just(ME), model=text, version=versions),
    ends,
    st.builds(MemberLeft, name=st.just(ME), incarnation=u64, detail=text),
    st.builds(ModelFreed, member=st.just(ME), model=text, epoch=u64),
    st.builds(MemoryReported, name=st.just(ME), kinds=memory_kinds),
    st.builds(LinksReported, monitor=st.just(ME), rates=several(link_rates)),
    st.builds(ReplicaReported, replica=st.just(ME), model=text, term=u64, version=versions, held=several(update_ids)),
    st.builds(
        HeldBack, server=st.just(ME), model=text, transfers=several(transfer_ids), alone=st.booleans(), detail=text
    ),
    st.builds(NotKept, member=st.just(ME), model=text, term=u64, detail=text),
    st.builds(
        Prepared,
        server=st.just(ME),
        model=text,
        unit=u64,
        accepted=st.booleans(),
        culprits=several(update_ids),
        cause=st.none() | st.sampled_from(DropReason),
        detail=text,
    ),
)
me = st.just(ME)
expects = st.builds(
    Expect,
    to=me,
    transfer=transfer_ids,
    members=some(st.builds(Expected, update_ids, versions, u64, number, samples)),
    model=text,
    seq=u64,
    ticket=ticket,
    size_bytes=u64,
    tau_max=i64,
    kind=st.sampled_from(UpdateKind),
    after=several(transfer_ids),
    lrs=several(number),
    parts=st.integers(1, 2**32 - 1),
    reason=text,
)
inputs = st.builds(
    SumInput,
    transfer=transfer_ids,
    ticket=ticket,
    first=number,
    second=number,
    size_bytes=u64,
    after=several(transfer_ids),
)
sums = st.builds(
    Sum,
    to=me,
    sum=sum_ids,
    model=text,
    inputs=some(inputs),
    members=several(update_ids),
    images=st.sampled_from((1, 2)),
    cut_through=st.booleans(),
    receiver=text,
    address=text,
    ticket=ticket,
    rate_bps=u64,
    seq=u64,
    reason=text,
)
hand_ons = st.builds(
    HandOn,
    to=me,
    get=get_ids,
    model=text,
    source=text,
    address=text,
    ticket=ticket,
    targets=several(st.builds(HandOnTo, get_ids, ticket, u64)),
    reason=text,
)
serves = st.builds(
    Serve,
    to=me,
    get=get_ids,
    model=text,
    ticket=ticket,
    min_version=versions,
    after_updates=several(update_ids),
    after=several(get_ids),
    rate_bps=u64,
    reason=text,
    version=st.none() | versions,
    span_ns=u64,
)
sends = st.builds(
    Send, to=me, update=update_ids, receiver=text, address=text, seq=u64, ticket=ticket, rate_bps=u64, reason=text
)
rates = st.floats(0, 1e300)
bounds = st.floats(0, allow_nan=False)
followings = st.builds(
    Followed,
    to=me,
    model=text,
    replica=text,
    version=versions,
    held=several(update_ids),
    norm=bounds,
    updates=st.none() | u64,
    reason=text,
)
seeds = st.builds(
    Seed, to=me, model=text, term=u64, transfer=sum_ids, receiver=text, address=text, ticket=ticket, reason=text
)
replicates = st.builds(
    Replicate, to=me, model=text, term=u64, transfer=transfer_ids, ticket=ticket, rate_bps=u64, reason=text
)
folds = st.builds(
    Fold,
    to=me,
    model=text,
    term=u64,
    update=update_ids,
    lrs=some(rates),
    share=st.floats(0, 1, exclude_min=True),
    begins=st.booleans(),
    reason=text,
)
reduce_ids = st.builds(ReduceId, text, u64, u64)
peers = st.builds(Peer, text, text, ticket, u64)
parts = st.builds(
    lambda start, length, **fields: ReducePart(start=16 * start, end=16 * start + length, **fields),
    start=st.integers(0, 2**50),
    length=st.integers(1, 2**50),
    inputs=several(peers),
    parent=st.none() | peers,
    source=st.none() | peers,
    takers=several(peers),
    rate_bps=u64,
)
probes = st.builds(
    Probe,
    to=me,
    model=text,
    round=rounds,
    size_bytes=st.integers(1, 2**64 - 1),
    targets=several(peers),
    sources=several(peers),
    slot_ns=u64,
    reason=text,
)
groups = several(st.builds(GroupOf, text, several(commits)))
instructions: st.SearchStrategy[Instruction] = st.one_of(
    st.builds(Reduce, to=me, reduce=reduce_ids, round=rounds, workers=u32, parts=several(parts), reason=text),
    st.builds(CancelReduce, to=me, round=rounds, reason=text),
    st.builds(ReduceSettled, to=me, reduce=reduce_ids, round=rounds, workers=u32, reason=text),
    st.builds(ReduceFailed, to=me, reduce=reduce_ids, reason=text),
    probes,
    sends,
    expects,
    serves,
    sums,
    hand_ons,
    followings,
    seeds,
    replicates,
    folds,
    st.builds(Keep, to=me, model=text, term=u64, receiver=text, address=text, reason=text),
    st.builds(Release, to=me, model=text, term=u64, updates=several(update_ids), reason=text),
    st.builds(Logged, to=me, model=text, commits=several(commits), reason=text),
    st.builds(SamplesGranted, to=me, serial=u64, samples=samples, answer=st.sampled_from(DrawAnswer), reason=text),
    st.builds(NoteDropped, to=me, model=text, samples=samples, reason=text),
    st.builds(Unfollowed, to=me, model=text, reason=text),
    st.builds(Promote, to=me, server=text, server_epoch=u64, known=groups, foretold=groups, reason=text),
    st.builds(NewServer, to=me, model=text, server_epoch=u64, reason=text),
    st.builds(Prepare, to=me, model=text, unit=u64, transfers=some(transfer_ids), version=versions, reason=text),
    st.builds(Conclude, to=me, model=text, unit=u64, commit=st.booleans(), reason=text),
    st.builds(CancelSum, to=me, model=text, sum=sum_ids, reason=text),
    st.builds(CancelHandOn, to=me, model=text, get=get_ids, reason=text),
    st.builds(MonitorAt, to=me, address=text, token=ticket, reason=text),
    st.builds(PeerLost, to=me, address=text, reason=text),
    st.builds(HostModel, to=me, spec=specs, reason=text),
    st.builds(FreeModel, to=me, model=text, epoch=u64, reason=text),
    st.builds(Initialise, to=me, model=text, reason=text),
    st.builds(Drop, to=me, model=text, update=update_ids, cause=st.sampled_from(DropReason), reason=text),
    st.builds(Resolve, to=me, update=update_ids, outcome=outcomes, reason=text),
    st.builds(Void, to=me, model=text, transfer=transfer_ids, reason=text),
    st.builds(Fetch, to=me, get=get_ids, source=text, address=text, ticket=ticket, reason=text),
    st.builds(CancelServe, to=me, model=text, get=get_ids, reason=text, gone=st.booleans()),
)
welcomes = st.builds(
    Welcome,
    to=me,
    incarnation=u64,
    epoch=u64,
    tau_max=i64,
    server=text,
    server_address=text,
    initialise=st.booleans(),
    monitor_address=text,
    monitor_token=st.binary(max_size=32),
    reason=text,
    clock=u64,
    lost=st.booleans(),
)
