"""The simulated shell of a replica: session, connections, stores. Does what ``server/replica_service.py`` does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mlfabric.model.specs import Role
from mlfabric.model.update_rules import RuleKind
from mlfabric.protocol import (
    Following,
    MemberEvent,
    MemberJoined,
    ModelVersion,
    SumId,
    UpdateKind,
    Welcome,
)
from mlfabric.server import actions as act
from mlfabric.server.replica import ReplicaModel
from mlfabric.server.replica_actions import (
    ApplyPrefix,
    PlantSeed,
    PrefixApplied,
    PrefixRefused,
    ReplicaEvent,
    SeedPlanted,
    TakeOver,
)
from mlfabric.server.replica_log import Entry
from mlfabric.server.replica_state import ReplicaState
from mlfabric.simulator.double import ReceiveBuffers
from mlfabric.simulator.exact import (
    PRIME,
    Image,
    Weights,
    added,
    after_window,
    carried,
    mean_of,
    own_step,
    single_step,
)
from mlfabric.simulator.payloads import CHUNKS
from mlfabric.simulator.receiving import BufferedReceiver
from mlfabric.simulator.surroundings import Surroundings
from mlfabric.simulator.witness import MadeVersion

if TYPE_CHECKING:
    from mlfabric.simulator.server import SimulatedServer

__all__ = ["SimulatedReplica"]

STEP_NS = 1_000_000


class SimulatedReplica(BufferedReceiver):
    """One process of a replica of ``server``."""

    chunks = CHUNKS
    state: ReplicaState

    def __init__(
        self,
        around: Surroundings,
        name: str,
        incarnation: int,
        server: str,
        take_over: Callable[[SimulatedReplica, TakeOver], None],
    ) -> None:
        process = around.world.process(name, f"host of {name}")
        super().__init__(around, name, incarnation, f"{name}, process {incarnation}", process)
        self.server = server
        self.state = ReplicaState(name)
        self.stores: dict[str, tuple[int, Weights]] = {}
        self._witness = around.witness
        self.heir: SimulatedServer | None = None
        self.foretold: dict[str, list[MadeVersion]] = defaultdict(list)
        self._running: Counter[str] = Counter()
        self._ending: dict[str, act.FreeStore] = {}
        self._doing |= {
            act.FreeStore: self._free,
            PlantSeed: self._plant,
            ApplyPrefix: self._apply,
            TakeOver: partial(take_over, self),
        }
        around.flows.add_host(self.host)

    def die(self) -> None:
        """End the process: every connection breaks."""
        if self.heir is not None:
            self.heir.die()
        self.session.die()
        self._end()

    def retire(self) -> None:
        """End as a replica: the process is a server now."""
        self.session.leave(self.incarnation)
        self._end()

    # The session

    def joining(self) -> MemberJoined:
        """Return how it registers."""
        config = self._world.config
        follows = Following(
            server=self.server,
            norm=config.div_max,
            updates=config.div_max_updates,
            is_seeded=self.state.is_seeded,
        )
        return MemberJoined(member=self._member(Role.REPLICA, config.link_bps), follows=follows)

    def admitted(self, welcome: Welcome) -> list[MemberEvent]:
        """Begin under a scheduler; return what it announces."""
        if self.heir is not None:
            self.heir.die()
            self.heir = None
        self._take_in(act.TermBegan(term=welcome.term))
        return list(self.state.holds())

    # Events in, actions out

    def _rested(self) -> None:
        """Check the buffers, and show the witness what is in them."""
        transfers = {n: t for model in self.state.models.values() for n, t in model.transfers.items()}
        counted = {name for name, transfer in transfers.items() if transfer.holds_buffer}
        counted.update(*(action.transfers for action in self._ending.values()))
        assert counted == self.buffers.names(), f"{self.name} keeps {self.buffers.names()}; it counts {counted}"
        for name, model in self.state.models.items():
            if model.certain is not None or self._is_astray(name, model.version):
                continue  # it may be about to be a server, with more than is known to be committed
            held = (t for t in model.transfers.values() if t.is_held and t.order.kind is not UpdateKind.STATE)
            holdings = tuple(frozenset(transfer.members) for transfer in held)
            self._witness.leads.holds(name, self, self.stores[name][0] if name in self.stores else 0, holdings)

    def _may_be_lost(self, action: act.Answer) -> bool:
        return False

    # The store

    def _plant(self, action: PlantSeed) -> None:
        image = self.buffers.image(action.transfer)
        assert image is not None, "a seed is finite"
        weights, version = (image[0], image[1]), action.holds.version.number
        if not self._is_astray(action.model, action.holds.version):
            self._witness.follows(action.model, version, weights)
        self.foretold[action.model].clear()
        event = SeedPlanted(model=action.model, transfer=action.transfer)
        self._later(f"{action.transfer} planted", action.model, (version, weights), event)

    def _apply(self, action: ApplyPrefix) -> None:
        version, weights = self.stores[action.model]
        model = self.state.models[action.model]
        done = [entry for entry in model.log if entry.version <= action.version]
        if self._is_hopeless(action, done):
            refused = PrefixRefused(model=action.model, detail="the steps are not finite")
            self._later(f"{self.name} refused", action.model, (version, weights), refused)
            return
        after = _after(model, weights, action, self.buffers)
        made = len({entry.version for entry in done})
        assert version + made == action.version.number, f"{action} after version {version}"
        if self._is_astray(action.model, model.version):
            pass
        elif model.certain is None:
            self._witness.follows(action.model, action.version.number, after)
        else:
            self.foretold[action.model] += [MadeVersion(e.version, e.lr, e.members, e.ends_group) for e in done]
        event = PrefixApplied(model=action.model, version=action.version)
        self._later(f"{self.name} applied", action.model, (action.version.number, after), event)

    def _free(self, action: act.FreeStore) -> None:
        self._ending[action.model] = action
        self._free_if_idle(action.model)

    def _free_if_idle(self, model: str) -> None:
        """Hold nothing of a model any more that has ended, once nothing is done to it."""
        if model not in self._ending or self._running[model]:
            return
        self.stores.pop(model, None)
        for transfer in self._ending.pop(model).transfers:
            self.buffers.forget(transfer)
        self._take_in(act.StoreFreed(model=model))

    @property
    def is_astray(self) -> bool:
        """Whether it has a model that has begun anew at its primary, and has not heard of that epoch."""
        return any(self._is_astray(name, model.version) for name, model in self.state.models.items())

    def _is_astray(self, model: str, version: ModelVersion) -> bool:
        """Tell whether a version is that of a server whose place was taken, which a new scheduler did not know."""
        return version.epoch < self._witness.kept_since(model)

    def _is_hopeless(self, action: ApplyPrefix, done: Sequence[Entry]) -> bool:
        """Tell whether steps are not finite: the primary would have made none of them."""
        images = [self.buffers.image(part.transfer) for part in action.parts]
        return None in images or any(self._witness.is_huge(update) for entry in done for update in entry.members)

    def _later(self, what: str, model: str, store: tuple[int, Weights], event: ReplicaEvent) -> None:
        """Let a store have changed after a while."""

        def finish() -> None:
            self._running[model] -= 1
            if self.is_alive:
                self.stores[model] = store
                self._take_in(event)
                self._free_if_idle(model)

        self._running[model] += 1
        self._world.later(self._world.pause_ns(STEP_NS), what, finish)


def _after(model: ReplicaModel, weights: Weights, action: ApplyPrefix, buffers: ReceiveBuffers) -> Weights:
    """Return what a prefix makes of weights and history, as ``replica_steps`` does."""
    rule, lrs = model.spec.rule, action.lrs
    images = {part.transfer: buffers.image(part.transfer) for part in action.parts}
    finite = {transfer: image for transfer, image in images.items() if image is not None}
    assert len(finite) == len(action.parts), f"{action} has updates in it that are not finite"
    if rule.kind is RuleKind.ADAM:
        total = sum(image[0] for image in finite.values()) % PRIME
        return single_step(rule, weights, mean_of(total, len(finite)), lrs[0])
    window: Image = (0,) * rule.sum_images
    for part in action.parts:
        image = finite[part.transfer]
        if not isinstance(part.transfer, SumId):
            image = own_step(rule, image[0], lrs[part.place - 1], part.share)
        window = added(window, carried(rule, image, lrs[part.place :]))
    return after_window(rule, weights, window, lrs)
