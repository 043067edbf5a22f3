"""A whole fabric in one process and virtual time: the twin of a running one (design, section 9).

The state machines are the real ones; around them are simulated shells, links, clocks, crashes. After every event the
machines' own checks and the witness's hold, or the run ends with its seed and the last part of the story.
"""

from __future__ import annotations

from mlfabric.protocol import GetId, TransferId, UpdateId
from mlfabric.simulator.config import SimulationConfig, Summary
from mlfabric.simulator.fabric import Fabric
from mlfabric.simulator.server import SimulatedServer
from mlfabric.simulator.storms import Storm
from mlfabric.simulator.world import STORY_LINES

__all__ = ["Simulation"]

MOST_EVENTS_AFTERWARDS = 10_000


class Simulation(Fabric):
    """One simulated fabric; equal configurations give equal runs, event by event."""

    def __init__(self, config: SimulationConfig, story_lines: int = STORY_LINES) -> None:
        super().__init__(config, story_lines)
        self._storm = Storm(self)

    # Running

    def run(self, events: int) -> Summary:
        """Run so many events, then without further faults until everything is quiet.

        Raises:
            AssertionError: something that must hold does not; with the seed and the end of the story.
        """
        try:
            self._start()
            taken = self.world.play(events)
            self.world.is_stormy = False
            self.world.note("the storm is over")
            taken += self.world.play(MOST_EVENTS_AFTERWARDS)
            assert not self.world.step(), f"something still happens after {MOST_EVENTS_AFTERWARDS} more events"
            self._check_quiet()
        except Exception as error:
            # Whatever it is: with the seed and the story it can be played again.
            error.add_note(f"{self.config}\n{self.world.story()}")
            raise
        return self._summary(taken)

    def _start(self) -> None:
        for server in self.servers.values():
            server.session.join()
        for aggregator in self.aggregators:
            aggregator.session.join()
        self.followers.start()
        for worker in self.workers:
            self.world.later(
                self.world.pause_ns(self.config.compute_ns), f"{worker.name} starts", worker.start, worker.process
            )
        self._storm.start()

    # The end

    def _check_quiet(self) -> None:
        """Check that nothing is stuck and nothing is left over."""
        for worker in self.workers:
            if worker.is_alive:
                stuck = [*worker.state.pushing.pushes, *worker.state.getting.gets]
                assert not stuck, f"{worker.name} waits for ever for {stuck}"
        state = self.scheduler.state
        network, now_ns = state.context.network, self.scheduler.now_ns
        network.prune(now_ns)
        busy = [link for link in network.links if network.busy_until(link, now_ns) > now_ns]
        assert not busy, f"{busy} are still reserved"
        for name, model in state.models.items():
            tables = (model.pushes.waiting, model.pushes.planned, model.gets.waiting, model.gets.planned)
            left = [request for table in tables for request in table if not self._is_lost(name, request)]
            assert not left, f"the scheduler still counts on {left} of {name}"
            hand_ons = model.gets.hand_ons.planned
            assert not len(model.pushes.sums), f"the scheduler still counts on {list(model.pushes.sums)} of {name}"
            assert not hand_ons, f"the scheduler still counts on {hand_ons} of {name}"
            iteration = model.pushes.iteration
            assert iteration is None, f"the scheduler still counts on {iteration} of {name}"
        for server in self.servers.values():
            self._check_quiet_server(server)
        for aggregator in self.aggregators:
            if aggregator.is_alive:
                open_there = [*aggregator.state.sums.sums, *aggregator.state.handings.handings]
                assert not open_there, f"{aggregator.name} still waits for {open_there}"
        self.followers.check_quiet(state, self.servers)
        self.witness.remembered(state)

    def _is_lost(self, model: str, request: TransferId | GetId) -> bool:
        """Tell whether an update was committed and lost; what is with a server then stays until its worker pushes."""
        whole = self.scheduler.state.models[model].pushes.whole
        return whole is not None and isinstance(request, UpdateId) and whole.lost(request) is not None

    def _check_quiet_server(self, server: SimulatedServer) -> None:
        buffers = len(server.buffers)
        for name, model in server.state.models.items():
            kept = [t for t in model.incoming.transfers if self._is_lost(name, t)]
            left = [*(t for t in model.incoming.transfers if t not in kept), *model.gets.gets]
            buffers -= len(kept)
            assert not left, f"{server.name} still waits for {left} of {name}"
            store = server.stores[name]
            assert not store.pins, f"{server.name} has {store.pins} pins on {name} that nobody needs"
            if model.initialised:
                expected = self.witness.weights(name, model.version.number)
                assert store.value == expected, f"{name} is not the sum of what was committed"
                assert store.version == model.version.number, f"{name}: store {store.version}, state {model.version}"
            if model.spec.shard is None:
                counts, here = model.samples.counts(), [w for w in self.workers if w.is_alive]
                present = {(w.name, w.incarnation) for w in here}
                self.witness.accounts(name, model.version.number, counts)
                self.witness.dropped_are_known(name, counts, present)
        assert not buffers, f"{server.name} keeps {buffers} buffers that nobody needs"

    def _summary(self, taken: int) -> Summary:
        lost = [u for u, t in self.witness.truths.items() if u not in self.witness.told]
        return Summary(
            seed=self.config.seed,
            events=taken,
            virtual_s=self.world.now_ns / 1e9 - 1,
            committed=len(self.witness.applied),
            dropped=self.witness.dropped,
            unheard=len(lost),
            gets=self.witness.gets,
            sums=self.witness.sums,
            handed_on=sum(aggregator.handed_on for aggregator in self.aggregators),
            promises=self.witness.leads.promises,
            promotions=self.witness.promotions,
            lost=len(self.witness.lost.keys() - self.witness.applied.keys()),
            terms_by_hole=sum(m.replication.terms_begun_by_hole for m in self.scheduler.state.models.values()),
            faults=self.world.counts,
            digest=self.world.digest,
        )
