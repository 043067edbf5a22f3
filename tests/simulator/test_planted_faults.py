"""Bugs planted on purpose that only one kind of fault each brings to light: hangs, partitions, disks, dead servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mlfabric.protocol.lineage import name_of_epoch
from mlfabric.scheduler.context import NumberMaker
from mlfabric.server import actions as act
from mlfabric.server.gate import Gate
from mlfabric.server.hosted import HostedModel
from mlfabric.server.state import ServerState
from mlfabric.simulator import FaultRates, Simulation, SimulationConfig, Summary
from mlfabric.simulator.double import Checkpoint
from mlfabric.simulator.scheduler import SimulatedScheduler
from mlfabric.simulator.worker import SimulatedWorker
from mlfabric.worker_daemon.open_pushes import Pushing
from tests.simulator.test_planted_bugs import caught


def with_only(
    skew_ns: int = 0, latency_ns: int = 1_000_000, notice_ns: int = 20_000_000, **often: float
) -> Callable[[int], SimulationConfig]:
    """Return how to draw a busy fabric of four workers in which nothing goes wrong but this."""

    def draw(seed: int) -> SimulationConfig:
        return SimulationConfig(
            seed=seed,
            workers=4,
            tau_max=8,
            notice_ns=notice_ns,
            latency_ns=latency_ns,
            compute_ns=5_000_000,
            model_bytes=300_000,
            answer_ns=50_000_000,
            skew_ns=skew_ns,
            faults=FaultRates(**often),
        )

    return draw


# Hangs


def test_a_worker_that_is_given_up_and_wakes_up_without_a_word_of_what_it_holds_is_caught(monkeypatch):
    admitted = SimulatedWorker.admitted

    def silent(self, welcome):
        is_back = welcome.term == self.state.term
        held = admitted(self, welcome)
        return [] if is_back else held

    monkeypatch.setattr(SimulatedWorker, "admitted", silent)
    caught("waits for ever", with_only(hang_hz=8.0))


# Partitions


def test_a_server_that_does_not_tell_an_old_connection_from_the_one_that_took_its_place_is_caught(monkeypatch):
    broken, offer = HostedModel.broken, HostedModel.offer

    def of_any_connection(self, name, connection, detail):
        transfer = self.incoming.transfers.get(name)
        now = connection if transfer is None else transfer.connection
        yield from broken(self, name, now, detail)

    def beside_the_old(self, event):
        return (action for action in offer(self, event) if not isinstance(action, act.Abandon))

    monkeypatch.setattr(HostedModel, "broken", of_any_connection)
    monkeypatch.setattr(HostedModel, "offer", beside_the_old)
    caught("lost its buffer while", with_only(latency_ns=5_000_000, notice_ns=60_000_000, cut_hz=40.0), first=17)


# Clocks


def test_times_of_two_hosts_that_are_compared_are_caught(monkeypatch):
    broken = Pushing.broken

    def played(skew_ns: int) -> Summary:
        simulation = Simulation(with_only(skew_ns, connection_hz=4.0)(1))

        def by_the_clock_of_the_scheduler(self, event, now_ns):
            return broken(self, event, simulation.scheduler.now_ns)

        monkeypatch.setattr(Pushing, "broken", by_the_clock_of_the_scheduler if plants else broken)
        return simulation.run(2500)

    plants = False
    assert played(0) == played(10_000_000_000)
    plants = True
    assert played(0) != played(10_000_000_000)


# Disks


def test_a_scheduler_that_begins_a_term_which_it_could_not_write_down_is_caught(monkeypatch):
    come_back = SimulatedScheduler._come_back

    def careless(self):
        if self._world.has_full_disk(self.process.host):
            self._world.full_until_ns.clear()
            self.term -= 1
        come_back(self)

    monkeypatch.setattr(SimulatedScheduler, "_come_back", careless)
    caught("begins term", with_only(disk_hz=20.0, scheduler_hz=8.0))


# Servers that die


def test_a_resumed_server_that_takes_an_epoch_which_was_used_before_is_caught(monkeypatch):
    monkeypatch.setattr(NumberMaker, "next_server_epoch", lambda self: name_of_epoch(self._term, 1))
    caught("came after", with_only(server_hz=8.0))


def test_a_server_that_begins_with_nothing_under_the_epoch_of_before_is_caught(monkeypatch):
    host = ServerState._host
    monkeypatch.setattr(ServerState, "_host", lambda self, order: host(self, replace(order, epoch=1)))
    caught("is given twice", with_only(server_hz=8.0, amnesia=1.0))


def test_an_update_that_was_computed_from_a_lost_version_is_caught(monkeypatch):
    refusal = Gate.refusal

    def unaware(self, member, place, tau_max):
        base = member.computed_from._replace(epoch=self.version.epoch)
        return refusal(self, member._replace(computed_from=base), place, tau_max)

    monkeypatch.setattr(Gate, "refusal", unaware)
    caught("which was lost", with_only(server_hz=6.0))


def test_a_checkpoint_without_the_names_of_what_is_in_it_is_caught(monkeypatch):
    resumed = Checkpoint.resumed
    monkeypatch.setattr(Checkpoint, "resumed", lambda *args: replace(resumed(*args), applied=()))
    caught("is applied twice", with_only(several_hz=8.0, latency_ns=5_000_000), first=12)
