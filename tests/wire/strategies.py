"""Strategies for every value that travels; each stays within what the wire can carry."""

from __future__ import annotations

from hypothesis import strategies as st

from mlfabric.protocol import (
    AppliedIds,
    CancelServe,
    Commit,
    CommitsReported,
    Committed,
    Drop,
    Dropped,
    DropReason,
    Expect,
    Fetch,
    GetId,
    GetRequested,
    HostModel,
    Initialise,
    InitialReceived,
    Instruction,
    LinkRate,
    Lost,
    MemberEvent,
    MemberLeft,
    MemoryReported,
    ModelVersion,
    MonitorAt,
    Outcome,
    PushRequested,
    Resolve,
    Send,
    Serve,
    ServerHolds,
    TransferEnd,
    TransferEnded,
    UpdateId,
    UpdateKind,
    Void,
    Welcome,
    WorkerHolds,
)
from mlfabric.specs import (
    DTYPE_BYTES,
    Layout,
    Member,
    Mode,
    ModelSpec,
    Role,
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
versions = st.builds(ModelVersion, u32, u64)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Committed, version=versions, tau=i64),
    st.builds(Dropped, cause=st.sampled_from(DropReason), detail=text),
    st.builds(Lost, detail=text),
)


def several(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


tensors = st.builds(
    TensorSpec,
    name=name,
    shape=several(u64),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    kind=st.sampled_from(TensorKind),
)
layouts = st.lists(tensors, min_size=1, max_size=3, unique_by=lambda t: t.name).map(lambda ts: Layout(tuple(ts)))
rules = st.builds(
    RuleSpec,
    lr=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    momentum=st.floats(0, 1, exclude_max=True),
    weight_decay=st.floats(min_value=0, allow_infinity=False),
    schedule=st.sampled_from(Schedule),
    warmup_versions=u64,
    milestones=st.lists(u64, max_size=3).map(sorted).map(tuple),
    factor=st.floats(0, 1, exclude_min=True),
    total_versions=st.integers(1, 2**64 - 1),
)
specs = st.builds(
    ModelSpec,
    name=name,
    layout=layouts,
    rule=rules,
    mode=st.sampled_from(Mode),
    tau_max=st.none() | st.integers(0, 2**63 - 1),
    server=text,
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
    epoch_base=u64,
)
commits = st.builds(Commit, update=update_ids, version=versions, tau=i64, lr=number, step_norm=number)
ends = st.builds(
    TransferEnded,
    server=st.just(ME),
    model=text,
    transfer=update_ids | get_ids,
    end=st.sampled_from(TransferEnd),
    cause=st.none() | st.sampled_from(DropReason),
    detail=text,
)
memory_kinds = st.dictionaries(text, u64, max_size=3).map(lambda kinds: tuple(sorted(kinds.items())))
events: st.SearchStrategy[MemberEvent] = st.one_of(
    pushes,
    gets,
    st.builds(WorkerHolds, worker=st.just(ME), pushes=several(pushes), gets=several(gets)),
    holds,
    st.builds(CommitsReported, server=st.just(ME), model=text, commits=several(commits)),
    st.builds(InitialReceived, server=st.just(ME), model=text, version=versions),
    ends,
    st.builds(MemberLeft, name=st.just(ME), incarnation=u64, detail=text),
    st.builds(MemoryReported, name=st.just(ME), kinds=memory_kinds),
)
me = st.just(ME)
expects = st.builds(
    Expect,
    to=me,
    update=update_ids,
    model=text,
    seq=u64,
    ticket=ticket,
    size_bytes=u64,
    computed_from=versions,
    tau_max=i64,
    kind=st.sampled_from(UpdateKind),
    resolved_below=u64,
    after=several(update_ids),
    reason=text,
)
serves = st.builds(
    Serve,
    to=me,
    get=get_ids,
    model=text,
    ticket=ticket,
    min_version=versions,
    after_update=st.none() | update_ids,
    after=several(get_ids),
    rate_bps=u64,
    reason=text,
)
sends = st.builds(
    Send, to=me, update=update_ids, server=text, address=text, seq=u64, ticket=ticket, rate_bps=u64, reason=text
)
instructions: st.SearchStrategy[Instruction] = st.one_of(
    sends,
    expects,
    serves,
    st.builds(MonitorAt, to=me, address=text, reason=text),
    st.builds(HostModel, to=me, spec=specs, reason=text),
    st.builds(Initialise, to=me, model=text, reason=text),
    st.builds(Drop, to=me, model=text, update=update_ids, cause=st.sampled_from(DropReason), reason=text),
    st.builds(Resolve, to=me, update=update_ids, outcome=outcomes, reason=text),
    st.builds(Void, to=me, model=text, update=update_ids, reason=text),
    st.builds(Fetch, to=me, get=get_ids, server=text, address=text, ticket=ticket, reason=text),
    st.builds(CancelServe, to=me, model=text, get=get_ids, reason=text),
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
    reason=text,
)
link_rates = st.builds(LinkRate, host=name, up=st.booleans(), bps=u64, age_ns=u64)
