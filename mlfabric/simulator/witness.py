"""The witness: knows what really happened, and compares it with what everybody says (design, section 1).

It takes nothing from the state machines on trust: what an update is, when it was applied, who was told what are written
down where they happen, at the workers' handles and at the store.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import NamedTuple

from mlfabric.model.ranges import difference
from mlfabric.model.samples import SampleCounts, Samples
from mlfabric.model.specs import RuleKind, RuleSpec
from mlfabric.network import down_link
from mlfabric.protocol import (
    CommitsReported,
    Committed,
    Drop,
    Dropped,
    Expect,
    GetId,
    Instruction,
    Lost,
    MemberEvent,
    MemberJoined,
    ModelVersion,
    Outcome,
    Resolve,
    ServerHolds,
    SumId,
    TransferEnded,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.scheduler.state import SchedulerState
from mlfabric.server.actions import ApplyStep, StepKind
from mlfabric.simulator.exact import PRIME, Weights, mean_of, single_step
from mlfabric.simulator.lead_witness import Leads
from mlfabric.values import dataclass

__all__ = ["MadeVersion", "Oddity", "Truth", "Witness"]


class Oddity(Enum):
    """What is wrong with an update that ought to be refused."""

    NONE = "nothing"
    NAN = "its norm is NaN"
    SIZE = "its size is not the model's"
    LAYOUT = "its layout is not the model's"
    FUTURE = "it was computed from a version that does not exist"
    INFINITE = "it holds NaN or Inf, though its norm says nothing of it"
    OVERFLOW = "its step would make the weights infinite"
    CHANGED = "its tensors are changed while it is sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What an update is: the integer that it adds to the weights, as a vector, and what it was computed from.

    ``samples`` are of no other update.
    """

    model: str
    step: int
    computed_from: ModelVersion
    kind: UpdateKind
    oddity: Oddity = Oddity.NONE
    vector: complex = 0j
    samples: Samples = ()


class MadeVersion(NamedTuple):
    """A version that a replica made of what its primary may have committed (``followers/untold_commits.py``)."""

    version: ModelVersion
    lr: float
    members: tuple[UpdateId, ...]
    ends_group: bool

    def under(self, epoch: int) -> MadeVersion:
        """Return it as a version of another server epoch."""
        return self._replace(version=ModelVersion(epoch, self.version.number))


LONGEST_WAIT_NS = 10**9
"""More than an update takes over any link here, and so much longer than a batch is kept open."""


class Witness:
    """Everything that really happened."""

    def __init__(self) -> None:
        self.truths: dict[UpdateId, Truth] = {}
        self.applied: dict[UpdateId, Committed] = {}
        self.installed: dict[str, UpdateId] = {}
        self.told: dict[UpdateId, Outcome] = {}
        self.dropped: Counter[str] = Counter()
        self.gets = 0
        self.sums = Counter[int]()
        self.rules: dict[str, RuleSpec] = {}
        self.leads = Leads()
        self.lost: dict[UpdateId, list[Committed]] = defaultdict(list)
        self.promotions = 0
        self._server_epochs: dict[tuple[str, int], int] = {}
        self._told_epochs: dict[tuple[str, int], int] = {}
        self._versions: dict[str, ModelVersion] = {}
        self._kept_since: dict[str, int] = {}
        self._weights: dict[str, list[Weights]] = {}
        self._steps: set[int] = set()
        self._bounds: dict[str, int] = {}
        self._expected: dict[TransferId, Expect] = {}
        self._values: dict[tuple[str, ModelVersion], int] = {}
        self._given: set[tuple[str, ModelVersion]] = set()
        self._began: dict[str, list[ModelVersion]] = defaultdict(list)
        self._former_initials: set[UpdateId] = set()
        self._copied: set[UpdateId] = set()
        self._unnamed: set[str] = set()
        self._term = 0
        self._known: dict[str, tuple[SchedulerState, ModelVersion]] = {}
        self._joined: dict[str, set[str]] = defaultdict(set)
        self._together: dict[str, int] = {}

    # At the scheduler

    def term_begins(self, term: int) -> None:
        """Note a new scheduler, which must be told from all before it."""
        assert term > self._term, f"a scheduler begins term {term} after term {self._term}"
        self._term = term

    def heard(self, state: SchedulerState, event: MemberEvent, instructions: list[Instruction]) -> None:
        """Check what the scheduler says of outcomes, and what it remembers of those that it was just told."""
        for name, model in state.models.items():
            pushes = model.pushes
            self._bounds[name] = max(self._bounds.get(name, 0), pushes.tau_max)
            if pushes.initialised and self._known.get(name) != (state, pushes.version):
                self._counts_on(state, name, pushes.version)
        for instruction in instructions:
            # A server that is told to drop an update may have applied it by then, and does not.
            if isinstance(instruction, Drop) and instruction.to == instruction.update.worker:
                self._agrees("the scheduler", instruction.update, Dropped(cause=instruction.cause))
            elif isinstance(instruction, Resolve):
                self._agrees("the scheduler", instruction.update, instruction.outcome)
                self._keeps_up(state, instruction.update, instruction.outcome)
        if isinstance(event, MemberJoined) and event.spec is not None:
            self._joined[event.spec.name].add(event.member.name)
            self._together[event.spec.name] = event.spec.workers
        if isinstance(event, CommitsReported):
            self._remembered(state, [c.update for c in event.commits])
        elif isinstance(event, TransferEnded) and isinstance(event.transfer, UpdateId):
            self._remembered(state, [event.transfer])
        elif isinstance(event, ServerHolds):
            self.remembered(state)

    def _counts_on(self, state: SchedulerState, model: str, version: ModelVersion) -> None:
        """Check that what a scheduler takes for the newest version was made, and never goes back."""
        former, known = self._known.get(model, (state, version))
        if former is not state or known != version:
            newest = self._version_of(model)
            assert version <= newest, f"the scheduler takes {version} of {model} for made; the newest is {newest}"
            assert former is not state or known <= version, f"version {version} of {model} came after {known}"
        self._known[model] = (state, version)

    def rested(self, state: SchedulerState, now_ns: int) -> None:
        """Check that nobody waits for others while nothing is under way, unless for what is expected in a moment.

        What is on its way to a replica on the server's host takes the same link, and is waited for.
        """
        for model in state.models.values():
            pushes = model.pushes
            waits_for_all = pushes.policy.has_barrier or pushes.missing
            idle = pushes.initialised and not (pushes.awaited or pushes.planned or waits_for_all)
            if idle and state.context.is_here(pushes.server):
                due_ns = pushes.due_ns(now_ns) if pushes.waiting else now_ns
                free_ns = state.context.network.busy_until(down_link(state.context.host(pushes.server)), now_ns)
                late_ns = LONGEST_WAIT_NS if due_ns is None else due_ns - max(now_ns, free_ns)
                assert late_ns < LONGEST_WAIT_NS, (
                    f"{list(pushes.waiting)} wait though nothing is under way to {pushes.server}"
                )

    def remembered(self, state: SchedulerState) -> None:
        """Check every outcome that the scheduler remembers."""
        self._remembered(state, list(self.truths))

    def _remembered(self, state: SchedulerState, updates: list[UpdateId]) -> None:
        for update in updates:
            name = self.truths[update].model
            model = None if state.endings.is_ending(name) else state.models.get(name)
            outcome = model.pushes.settled.get(update) if model is not None else None
            if outcome is not None:
                self._agrees("the scheduler's memory", update, outcome)
                self._keeps_up(state, update, outcome)

    def _keeps_up(self, state: SchedulerState, update: UpdateId, outcome: Outcome) -> None:
        """Check that a scheduler that knows of a server calls nothing committed that was lost with the former one."""
        truth = self.truths[update]
        pushes = state.models[truth.model].pushes
        is_checked = truth.kind is UpdateKind.GRADIENT and pushes.spec.shard is None
        if is_checked and isinstance(outcome, Committed) and outcome.version.epoch < pushes.version.epoch:
            now = f"under server epoch {pushes.version.epoch}"
            known = [began for began in self._began[truth.model] if began.epoch <= pushes.version.epoch]
            is_lost = _is_behind(outcome.version, known) and update not in self.applied
            assert not is_lost, f"{update} is called {outcome} {now}; it was lost"

    # At the server

    def expected(self, order: Expect) -> None:
        """Note what a server was told last about a transfer."""
        self._expected[order.transfer] = order

    def begins(self, action: ApplyStep, members: Sequence[UpdateId], others: Sequence[TransferId]) -> None:
        """Check that transfers may be applied together now, while ``others`` are there."""
        orders = [self._expected[transfer] for transfer in action.transfers]
        for order in orders:
            before, name = [o for o in others if self._expected[o].seq < order.seq], order.transfer
            assert not before, f"{name} (seq {order.seq}) is applied before {before}, which are earlier in the plan"
        planned = [member.update for order in orders for member in order.members]
        assert planned == list(members), f"{members} are applied; expected in these transfers are {planned}"
        bound = min(self._bounds.get(action.model, 0), *(order.tau_max for order in orders))
        for update, tau in zip(members, self._delays(action, members), strict=True):
            self._may_be_applied(update)
            assert 0 <= tau <= bound, f"{update} is applied with delay {tau}; the bound in force is {bound}"
        self.sums.update(len(order.members) for order in orders if isinstance(order.transfer, SumId))
        if action.kind is StepKind.MEAN:
            self._is_iteration(orders, members)
        self.leads.begins(action.model)

    def _is_iteration(self, orders: Sequence[Expect], members: Sequence[UpdateId]) -> None:
        """Check that an iteration is of one place, and has one update of each of its workers."""
        seqs, workers = {order.seq for order in orders}, [update.worker for update in members]
        assert len(seqs) == 1, f"{members} make one version though they were planned at {seqs}"
        assert len(set(workers)) == len(workers), f"an iteration has two updates of one worker: {members}"

    def _may_be_applied(self, update: UpdateId) -> None:
        self._is_fit(update)
        truth = self.truths[update]
        base = truth.computed_from
        assert not self.is_lost(truth.model, base), f"{update} was computed from {base}, which was lost"

    def _is_fit(self, update: UpdateId) -> None:
        """Check that an update may be applied, whatever it was computed from."""
        truth, told = self.truths[update], self.told.get(update)
        assert update not in self.applied, f"{update} is applied twice"
        is_whole = truth.oddity is Oddity.CHANGED and update in self._copied
        may_be_seen_by_the_store = is_whole or truth.oddity in (Oddity.NONE, Oddity.OVERFLOW, Oddity.INFINITE)
        assert may_be_seen_by_the_store, f"{update} is applied though {truth.oddity.value}"
        assert not isinstance(told, Dropped), f"{update} is applied though its worker was told {told}"

    def is_huge(self, update: UpdateId) -> bool:
        """Tell whether a step with this update in it makes the weights infinite."""
        return self.truths[update].oddity is Oddity.OVERFLOW

    def _delays(self, action: ApplyStep, members: Sequence[UpdateId]) -> list[int]:
        """Return the delays of updates that are applied together: each makes a version, or all of them make one."""
        now, version = self._version_of(action.model), action.version
        makes_one = action.kind is StepKind.MEAN
        made = 1 if makes_one else len(members)
        assert version == (now.epoch, now.number + made), f"{members} made version {version} after {now}"
        bases = [self.truths[update].computed_from.number for update in members]
        return [now.number + (0 if makes_one else place) - base for place, base in enumerate(bases)]

    def commits(self, members: Sequence[UpdateId], action: ApplyStep) -> None:
        """Note that updates were applied together: what single steps make of the weights."""
        model, version, first = action.model, action.version, self._next_number(action.model)
        for place, (update, tau) in enumerate(zip(members, self._delays(action, members), strict=True)):
            step = self.truths[update].step
            assert step not in self._steps, f"what {update} brings is in the weights already"
            self._steps.add(step)
            number = version.number if action.kind is StepKind.MEAN else first + place
            self.applied[update] = Committed(version=ModelVersion(version.epoch, number), tau=tau)
        for number, weights in enumerate(self._steps_of(action, members, first), first):
            self._weights[model].append(weights)
            self._gives(model, ModelVersion(version.epoch, number))
            self._values[model, ModelVersion(version.epoch, number)] = weights[0]
        self._versions[model] = version
        self._has_formed(self._whole(model))
        self.leads.commits(action, members, [self.truths[update].vector for update in members])

    def _whole(self, model: str) -> str:
        """Return the name by which workers join."""
        return model

    def _has_formed(self, model: str) -> None:
        """Check that no step is made before as many workers have joined as the first one waits for."""
        joined, together = self._joined[model], self._together.get(model, 0)
        assert len(joined) >= together, f"{model} makes a step though of {together} workers only {joined} have joined"

    def _gives(self, model: str, version: ModelVersion) -> None:
        assert (model, version) not in self._given, f"{version} of {model} is given twice"
        self._given.add((model, version))

    def _version_of(self, model: str) -> ModelVersion:
        return self._versions.get(model, ModelVersion(1, 0))

    def _next_number(self, model: str) -> int:
        return self._version_of(model).number + 1

    def _steps_of(self, action: ApplyStep, members: Sequence[UpdateId], first: int) -> Iterator[Weights]:
        """Give the weights of each version that is made, from number ``first`` on."""
        rule, weights = self.rules[action.model], self._weights[action.model][-1]
        gradients, delays = [self.truths[update].step for update in members], self._delays(action, members)
        if action.kind is StepKind.MEAN or rule.kind is RuleKind.ADAM:
            mean = mean_of(sum(gradients) % PRIME, len(gradients))
            weights = single_step(rule, weights, mean, rule.lr_at(first - 1, delays[0]))
            yield from [weights] * (1 if action.kind is StepKind.MEAN else len(gradients))
            return
        own = [rule.lr_at(first - 1 + place, tau) for place, tau in enumerate(delays)]
        # What was summed has the rates in it that it was planned with; they are in the commit log.
        lrs = action.lrs if action.kind is StepKind.SUM else own
        for gradient, lr in zip(gradients, lrs, strict=True):
            weights = single_step(rule, weights, gradient, lr)
            yield weights

    def installs(self, update: UpdateId, version: ModelVersion) -> None:
        """Note whose weights a model began with, and at which version."""
        truth, model = self.truths[update], self.truths[update].model
        self._kept_since[model] = version.epoch
        self._gives(model, version)
        if model in self._weights:
            self._began[model].append(ModelVersion(version.epoch, -1))
        self.installed[model] = update
        self._names(model, version)
        self._weights[model] = [(truth.step, 0)]
        self._values[model, version] = truth.step
        self.leads.installs(model, self.rules[model], truth.vector)

    def renews(self, model: str, version: ModelVersion) -> None:
        """Note that a server goes on under the epoch that it was named, with what it has."""
        if model not in self.installed:
            return
        former = self._version_of(model)
        assert version.number == former.number, f"{model} went from {former} to {version}"
        assert version.epoch >= former.epoch, f"{model} went from {former} to {version}"
        self._names(model, version)
        self._gives(model, version)
        self._values[model, version] = self.weights(model, version.number)

    def _names(self, model: str, version: ModelVersion) -> None:
        """Note a model's version, in the first one of an epoch."""
        self._versions[model] = version
        self._unnamed.discard(model)

    def _unnamed_epoch(self, model: str) -> int:
        """Return an epoch above all of a model, and not above the one that it will be named."""
        epoch = self._version_of(model).epoch + (model not in self._unnamed)
        self._unnamed.add(model)
        return epoch

    def resumes(self, model: str, number: int) -> None:
        """Note that a model's server died, and goes on from this version: what was made since is lost."""
        epoch = self._unnamed_epoch(model)
        self._lose(model, ModelVersion(epoch, number))
        self._versions[model] = ModelVersion(epoch, number)
        self._values[model, self._versions[model]] = self._weights[model][number][0]
        self.leads.resumes(model, number)

    def forgets(self, model: str) -> None:
        """Note that a model's server died, and begins anew without weights: all was lost."""
        if model not in self.installed:
            return
        began = ModelVersion(self._unnamed_epoch(model), -1)
        self._lose(model, began)
        self._versions[model] = ModelVersion(began.epoch, 0)
        self._former_initials.add(self.installed.pop(model))
        self.leads.forgets(model)

    def ends(self, model: str) -> None:
        """Note that a model that has ended is freed."""
        self.forgets(model)

    def _lose(self, model: str, began: ModelVersion) -> None:
        """Note that an epoch began with what was made up to a version: the rest is lost."""
        for update, outcome in list(self.applied.items()):
            if self.truths[update].model == model and outcome.version.number > began.number:
                self.lost[update].append(self.applied.pop(update))
                self._steps.discard(self.truths[update].step)
        del self._weights.setdefault(model, [])[began.number + 1 :]
        self._began[model].append(began)
        self._kept_since[model] = began.epoch

    def is_lost(self, model: str, version: ModelVersion) -> bool:
        """Tell whether a version was lost when a later epoch began."""
        return _is_behind(version, self._began[model])

    # At the replica

    def kept_since(self, model: str) -> int:
        """Return the server epoch since which a model has all that it had; a replica of an earlier one is astray."""
        return self._kept_since.get(model, 1)

    def follows(self, model: str, number: int, weights: Weights) -> None:
        """Check what a replica is about to make its version of this number."""
        made = self._weights[model]
        assert number < len(made), f"the replica of {model} makes version {number}; the primary has {len(made) - 1}"
        assert weights == made[number], f"the replica of {model} makes another version {number} than the primary"

    def accounts(self, model: str, number: int, counts: SampleCounts) -> None:
        """Check the account of samples of a server or replica at a version: each update up to it is in it once."""
        done = {u: made.version.number for u, made in self.applied.items() if self.truths[u].model == model}
        trained = {one: 1 for u, made in done.items() if made <= number for one in self.truths[u].samples}
        entered = {(n, n + 1): times for start, stop, times in counts.runs for n in range(start, stop)}
        assert entered == trained, f"{model} at version {number} was trained on {counts.runs}"

    def dropped_are_known(self, model: str, counts: SampleCounts, present: Set[tuple[str, int]]) -> None:
        """Check that a server knows of all that was dropped and whose worker is there to say so.

        Args:
            model: whose account it is.
            counts: what the server says.
            present: names and incarnations of the workers that are there.
        """
        for update, outcome in self.told.items():
            truth = self.truths[update]
            if truth.model == model and isinstance(outcome, Dropped) and update[:2] in present:
                unknown = difference(truth.samples, counts.dropped)
                assert not unknown, f"{model}: no word that {update} was dropped"

    def promoted(
        self, model: str, version: ModelVersion, base: int, entries: Sequence[MadeVersion], is_blind: bool = False
    ) -> None:
        """Note that a replica goes on from this version as the server.

        Args:
            model: that it has.
            version: that it begins with.
            base: up to which the former server's log is in that; what that made after it is lost.
            entries: what the replica has made since, which the former server may have made as well, or not.
            is_blind: the scheduler could not foretell any.
        """
        self.promotions += 1
        before = self.leads.promoted(model, base)
        made = {u for u, outcome in self.applied.items() if self.truths[u].model == model}
        self._lose(model, ModelVersion(version.epoch, base))
        self._names(model, ModelVersion(version.epoch, base))
        self._values[model, self._versions[model]] = self.weights(model, base)
        self._make_again(model, entries)
        assert self._versions[model] == version, f"{model} goes on at {version}; made was {self._versions[model]}"
        if not is_blind:
            self.leads.check_lost(before, len(made - self.applied.keys()))

    def _make_again(self, model: str, entries: Sequence[MadeVersion]) -> None:
        """Make versions that a replica has made, by the log that it went by."""
        made = {entry.version for entry in entries}
        kind = StepKind.MEAN if len(made) < sum(len(entry.members) for entry in entries) else StepKind.SUM
        for step in _groups(entries):
            members = [update for entry in step for update in entry.members]
            self._copied.update(members)
            for update in members:
                self._is_fit(update)
            lrs = tuple(entry.lr for entry in step for _ in entry.members)
            version = step[-1].version
            step_made = ApplyStep(model=model, transfers=(), kind=kind, lrs=lrs, version=version)
            self.commits(members, step_made)

    def loses(self, model: str, outcomes: Mapping[UpdateId, Committed], made: Mapping[ModelVersion, int]) -> None:
        """Note what a server whose place another one has taken committed together.

        Args:
            model: that it has.
            outcomes: of the updates; those of an iteration make one version.
            made: the versions, and their weights.
        """
        for update, outcome in outcomes.items():
            self.lost[update].append(outcome)
        for version, weights in made.items():
            self._gives(model, version)
            self._values[model, version] = weights

    # At the workers

    def hears(self, worker: tuple[str, int], model: str, server_epoch: int) -> None:
        """Note under which server epoch a worker, by name and incarnation, was told that its model is served.

        One that a server is to go on under, and does not yet, says nothing of what was lost. What was told before of a
        greater one counts no more: nobody remembers that.
        """
        if server_epoch:
            self._server_epochs[worker] = server_epoch
        begun = min(server_epoch, self._version_of(model).epoch)
        self._told_epochs[worker] = max(self._told_epochs.get(worker, 0), begun)

    def learns(self, update: UpdateId, outcome: Outcome) -> None:
        """Check what the handle of a push resolves to."""
        assert update not in self.told, f"{update} was settled twice: {self.told[update]}, {outcome}"
        self.told[update] = outcome
        self._agrees("its worker", update, outcome)
        epoch, truth = self._told_epochs.get(update[:2], 0), self.truths[update]
        is_gradient = truth.kind is UpdateKind.GRADIENT
        if is_gradient and isinstance(outcome, Committed) and outcome.version.epoch < epoch:
            is_lost = self.is_lost(truth.model, outcome.version) and update not in self.applied
            assert not is_lost, f"{update}: its worker knows of server epoch {epoch}, and believes {outcome}"
        if isinstance(outcome, Dropped):
            self.dropped[outcome.cause.name] += 1
        elif truth.oddity is not Oddity.NONE and update not in self._copied:
            raise AssertionError(f"{update} was committed though {truth.oddity.value}")

    def delivers(self, get: GetId, model: str, version: ModelVersion, value: int, after: UpdateId | None) -> None:
        """Check that a get follows its update and is a version that was made."""
        self.gets += 1
        process = get.worker, get.incarnation
        before = self._server_epochs.setdefault(process, version.epoch)
        assert version.epoch >= before, f"{get} brought {version} after a model of server epoch {before}"
        self._server_epochs[process] = version.epoch
        really = self._values.get((model, version))
        assert really is not None, f"{get} brought {version}, never made; the newest is {self._versions}"
        assert value == really, f"{get} brought version {version} torn"
        if self.is_lost(model, version):
            return
        committed = self.applied.get(after) if after is not None else None
        assert committed is None or version >= committed.version, (
            f"{get} brought {version} without {after}, {committed}"
        )

    def settles(self, push: UpdateId, outcome: Outcome) -> None:
        """Check what the handle of a whole push resolves to."""
        self.learns(push, outcome)

    def brings(
        self, get: GetId, model: str, version: ModelVersion, values: Sequence[int], after: UpdateId | None
    ) -> None:
        """Check what a get of a whole model brought, part by part."""
        self.delivers(get, model, version, values[0], after)

    def weights(self, model: str, number: int) -> int:
        """Return what the weights of a version are: the first ones and the steps since, each once."""
        return self._weights[model][number][0]

    def _agrees(self, who: str, update: UpdateId, outcome: Outcome) -> None:
        truth = self.truths[update]
        if truth.kind is UpdateKind.INITIAL:
            is_here = self.installed.get(truth.model) == update
            was_here = update in self._former_initials
            assert was_here or isinstance(outcome, Committed) == is_here, (
                f"{who} says {outcome} of the first weights {update}"
            )
            return
        really, lost = self.applied.get(update), self.lost.get(update, [])
        if isinstance(outcome, Committed) and (self.is_lost(truth.model, outcome.version) or outcome in lost):
            assert outcome in lost, f"{who} says {outcome} of {update}, which was lost; it was {lost}"
        elif isinstance(outcome, Lost):
            assert update in self.lost, f"{who} says {outcome} of {update}, which never was committed"
            assert really is None, f"{who} says {outcome} of {update}; it is {really}"
        elif isinstance(outcome, Committed):
            assert outcome == really, f"{who} says {outcome} of {update}; it is {really}"
        else:
            assert really is None, f"{who} says {outcome} of {update}; it is {really}"


def _is_behind(version: ModelVersion, began: Sequence[ModelVersion]) -> bool:
    """Tell whether a later epoch began before a version was made."""
    return any(later.epoch > version.epoch and version.number > later.number for later in began)


def _groups(entries: Sequence[MadeVersion]) -> Iterator[list[MadeVersion]]:
    """Give what was made together."""
    group: list[MadeVersion] = []
    for entry in entries:
        group.append(entry)
        if entry.ends_group:
            yield group
            group = []
