"""The simulated shell of a worker daemon and the training loop above it. Does what ``worker_daemon/daemon.py`` does.

Each worker has a few lanes; a lane gets the model, computes for a while, pushes an update, and gets the model again
once that is settled. So several updates of one worker are in flight. If the model is cut, every push and get is one for
each part.
"""

from __future__ import annotations

from dataclasses import replace

from mlfabric.model.specs import NO_TERM, Layout, Method, ModelSpec, Role, Term
from mlfabric.protocol import (
    GetId,
    GetRequested,
    Initialise,
    Instruction,
    JobClaim,
    MemberEvent,
    MemberJoined,
    ModelVersion,
    NewServer,
    PushRequested,
    Resume,
    TransferId,
    UpdateId,
    UpdateKind,
    Welcome,
)
from mlfabric.scheduler.shards.parts import part_of, whole_of
from mlfabric.simulator.calls import Calls
from mlfabric.simulator.keeping import SimulatedKept
from mlfabric.simulator.member import SimulatedMember
from mlfabric.simulator.motion import direction
from mlfabric.simulator.surroundings import Surroundings
from mlfabric.simulator.witness import Oddity, Truth
from mlfabric.simulator.worker_connections import Attempts
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import DaemonState

__all__ = ["SimulatedWorker"]

NOWHERE = ModelVersion(0, 0)
ODDITIES = [oddity for oddity in Oddity if oddity is not Oddity.NONE]
OF_ALL_PARTS = (Oddity.NONE, Oddity.NAN, Oddity.FUTURE)
"""What is said of a whole push; anything else is wrong with one part, if the model is cut."""


class SimulatedWorker(SimulatedMember):
    """One process of a worker.

    Args:
        spec: of the model that it trains.
        job: that it is of.
    """

    state: DaemonState

    def __init__(
        self, around: Surroundings, name: str, incarnation: int, host: str, spec: ModelSpec, job: JobClaim
    ) -> None:
        world = around.world
        super().__init__(around, name, incarnation, "", world.process(name, host))
        self.spec = spec
        self.job = job
        self.witness = around.witness
        self.state = DaemonState(name, spec.shards)
        self._updates = 0
        self._gets = 0
        self._computing = 0
        self._left = world.config.calm_updates
        self._shards = spec.shards
        self._specs = [spec.of_shard(n) for n in range(self._shards)] if self._shards > 1 else [spec]
        self._lanes: dict[GetId, UpdateId | None] = {}
        self._here: set[UpdateId] = set()
        truths = around.witness.truths
        self._calls = Calls[bytes](world, self.process, around.book)
        self._attempts = Attempts(self._calls, self._layout_of, truths, self._take_in)
        self._keeping = Calls[TransferId](world, self.process, around.book)
        self.kept = SimulatedKept(self._keeping, spec, truths, self._here.__contains__, self._take_in)
        self._doing = {
            act.Request: lambda action: self.session.send(action.event),
            act.StartSend: lambda action: self._attempts.send(action.plan),
            act.StartFetch: lambda action: self._attempts.fetch(action.plan),
            act.StopTransfers: lambda _: self._calls.break_off(),
            act.Settle: self._settle,
            act.Deliver: self._deliver,
            **self.kept.doing,
        }
        self._seen = NO_TERM

    def start(self) -> None:
        """Join, and begin to train."""
        self.session.join()
        for _ in range(self._world.rng.randint(1, self._world.config.in_flight)):
            self._get(None)

    def die(self) -> None:
        """End the process: every connection breaks."""
        self.session.die()
        self.close()

    def close(self) -> None:
        """Break off whatever comes and goes."""
        self._calls.break_off()
        self._keeping.break_off()
        self._stop_timer()

    # The session

    def joining(self) -> MemberJoined:
        """Return how it registers."""
        member = self._member(Role.WORKER, self._world.config.link_bps, self._seen)
        job = replace(self.job, resume=Resume.GO_ON) if self._seen != NO_TERM else self.job
        return MemberJoined(member=member, spec=self.spec, holds_initial=True, job=job)

    def admitted(self, welcome: Welcome) -> list[MemberEvent]:
        """Begin under a scheduler; return what it announces."""
        self._seen = Term(welcome.term, welcome.instance)
        if welcome.initialise:
            self._bring_initial()
        self._hears(welcome.server_epoch)
        began = act.TermBegan(term=welcome.term, clock=welcome.clock, server_epoch=welcome.server_epoch)
        self._take_in(began)
        return [self.state.holds(), *self.state.drawing.open()]

    def instructed(self, instruction: Instruction) -> None:
        """Take in an instruction."""
        if isinstance(instruction, Initialise):
            self._bring_initial()
        elif isinstance(instruction, NewServer):
            self._hears(instruction.server_epoch)
        super().instructed(instruction)

    def _hears(self, server_epoch: int) -> None:
        self.witness.hears((self.name, self.incarnation), self.spec.name, server_epoch)

    def _bring_initial(self) -> None:
        if not any(push.request.kind is UpdateKind.INITIAL for push in self.state.pushing.parts.values()):
            self._push(NOWHERE, UpdateKind.INITIAL, Oddity.NONE)

    # Training

    def _layout_of(self, update: UpdateId) -> Layout:
        return self._specs[update.counter % self._shards].layout

    def _get(self, after: UpdateId | None) -> None:
        first = GetId(self.name, self.incarnation, self._gets * self._shards)
        self._gets += 1
        self._lanes[first] = after
        for shard, spec in enumerate(self._specs):
            follows = None if after is None else part_of(after, shard, self._shards)
            get = first._replace(counter=first.counter + shard)
            request = GetRequested(get=get, model=spec.name, min_version=ModelVersion(0, 0), after_update=follows)
            self._take_in(request)

    def _compute(self, version: ModelVersion) -> None:
        self._computing += 1
        delay_ns = self._world.pause_ns(self._world.config.compute_ns)
        self._world.later(delay_ns, "computes", lambda: self._computed(version))

    def _computed(self, version: ModelVersion) -> None:
        self._computing -= 1
        if self.is_alive and self._goes_on():
            is_odd = self._world.chance(self._world.config.faults.odd)
            oddity = self._world.rng.choice(ODDITIES) if is_odd else Oddity.NONE
            self._get(self._push(version, UpdateKind.GRADIENT, oddity))
        self._leave_if_done()

    def _goes_on(self) -> bool:
        """Tell whether there is more to train: as long as it storms, and a few updates more."""
        if not self._world.is_stormy:
            self._left -= 1
        return self._left >= 0

    def _leave_if_done(self) -> None:
        """Say good-bye when there is nothing more to do and others may wait for this worker."""
        has_open = self.state.pushing.pushes or self.state.getting.gets
        is_busy = self._computing or has_open or self._world.is_stormy or self._left > 0
        if self.is_alive and not is_busy and self.spec.method is not Method.ASYNCHRONOUS:
            self.session.leave(self.incarnation)

    def _push(self, version: ModelVersion, kind: UpdateKind, oddity: Oddity) -> UpdateId:
        push = UpdateId(self.name, self.incarnation, self._updates)
        self._updates += 1
        self._here.add(push)
        claimed = ModelVersion(version.epoch, version.number + 1000) if oddity is Oddity.FUTURE else version
        step = self._world.rng.getrandbits(64)
        norm = float("nan") if oddity is Oddity.NAN else self._world.rng.expovariate(1.0)
        odd = self._world.rng.randrange(self._shards) if self._shards > 1 else 0
        truths = self.witness.truths
        number, counts = len(truths), kind is UpdateKind.GRADIENT and self._shards == 1
        requests = []
        for shard, spec in enumerate(self._specs):
            update = part_of(push, shard, self._shards)
            truth = truths[update] = Truth(
                model=spec.name,
                step=step,
                vector=norm * direction(step),
                computed_from=claimed,
                kind=kind,
                oddity=oddity if oddity in OF_ALL_PARTS or shard == odd else Oddity.NONE,
                samples=((number, number + 1),) if counts else (),
            )
            size_bytes = spec.layout.size_bytes
            request = PushRequested(
                update=update,
                model=spec.name,
                size_bytes=size_bytes + 16 if truth.oddity is Oddity.SIZE else size_bytes,
                computed_from=claimed,
                norm=norm,
                kind=kind,
                samples=truth.samples,
            )
            requests.append(request)
        for request in requests:
            self._take_in(request)
        return push

    # What is done

    def _settle(self, action: act.Settle) -> None:
        push = whole_of(action.update, self._shards)
        self._here.discard(push)
        self.witness.settles(push, action.outcome)
        self._leave_if_done()

    def _deliver(self, action: act.Deliver) -> None:
        after, first = self._lanes.pop(action.get), action.get
        gets = [first._replace(counter=first.counter + shard) for shard in range(self._shards)]
        values = [self._attempts.values.pop(get) for get in gets]
        self.witness.brings(first, self.spec.name, action.version, values, after)
        self._compute(action.version)
