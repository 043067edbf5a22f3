"""What goes wrong in the laboratory, and when: drawn from the seed, and healed in the end.

A table has one row for each kind of fault. Most last for a while: for less than anybody's patience, for longer than a
round waits, or for longer than a connection does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import permutations

from mlfabric.lab.fabric import SCHEDULER_HOST, Fabric, Life
from mlfabric.lab.links import NATURE
from mlfabric.lab.processes import Process

__all__ = ["CALM_S", "Storm"]

CALM_S = 60.0
"""So long after the storm everybody who lives must have gone on: members wait for others ten seconds in several places,
one after the other."""
PROGRESS = 3
"""So much everybody must have done by then."""
SPANS_S = (*[(0.05, 0.5)] * 6, *[(1.0, 3.0)] * 3, (8.0, 15.0))
RESTART_S = (0.02, 1.0)
NOTICE_S = (0.0, 1.5)
LATE_S = (0.01, 0.4)
RATE_SHARES = (0.01, 0.1, 0.5, 1.0, 2.0)
MOST_LIVES = 50
COME_BACK = 0.8


class Storm:
    """The faults of one run.

    Args:
        fabric: whom they hit.
        gap_s: the mean time between two.
        most_workers: more than so many are not there at a time.

    Attributes:
        faults: how many there were of each kind.
    """

    def __init__(self, fabric: Fabric, gap_s: float, most_workers: int) -> None:
        self.faults: Counter[str] = Counter()
        self._fabric, self._gap_s, self._most = fabric, gap_s, most_workers
        self._draw = random.Random(f"storm {fabric.config.seed}")
        self._usual_latency_s = fabric.links.latency_s
        self._is_over = False
        self._kinds: dict[str, tuple[int, Callable[[], str]]] = {
            "kill": (3, self._kill),
            "power off": (1, self._power_off),
            "hang": (4, self._hang),
            "hang the scheduler": (1, self._hang_scheduler),
            "restart the scheduler": (2, self._restart_scheduler),
            "cut": (4, self._cut),
            "break a call": (4, self._break_call),
            "break a data connection": (4, self._break_connection),
            "change a link": (3, self._change_link),
            "late messages": (1, self._be_late),
            "join": (2, self._join),
            "leave": (1, self._leave),
        }

    def rage(self, seconds: float, events: int) -> None:
        """Let things go wrong for so long, or until so many callbacks have run."""
        self._later(self._draw.expovariate(1 / self._gap_s), self._strike)
        self._fabric.run(seconds, lambda: self._fabric.loop.turns > events)
        self._is_over = True

    def calm(self) -> None:
        """Heal everything; then everybody who lives must go on.

        Raises:
            AssertionError: somebody does not.
        """
        fabric, links = self._fabric, self._fabric.links
        fabric.note("it is calm")
        links.latency_s = self._usual_latency_s
        links.heal(permutations(self._hosts(), 2))
        for host in self._hosts():
            self._set_rates(host, 1.0)
        for process in [fabric.scheduler, *(life.process for life in fabric.lives)]:
            if process is not None:
                process.go_on()
        if fabric.scheduler is None:
            fabric.start_scheduler()
        if not any(fabric.job.progress(life) for life in self._alive()):
            for index in range(fabric.config.workers):  # a job begins when all its workers are there
                fabric.start_if_absent(index)
        before = {life: fabric.job.progress(life) for life in self._alive()}

        def behind() -> list[str]:
            done = {life: fabric.job.progress(life) - before.get(life, 0) for life in self._alive()}
            return [f"{life.name} (life {life.number}) has done {n}" for life, n in done.items() if n < PROGRESS]

        fabric.run(CALM_S, lambda: not behind())
        assert not behind(), f"{CALM_S} s after the storm {', '.join(behind())}; wanted: {PROGRESS} at least"

    def _strike(self) -> None:
        if self._is_over:
            return
        weights = [weight for weight, _ in self._kinds.values()]
        (kind,) = self._draw.choices(list(self._kinds), weights)
        what = self._kinds[kind][1]()
        if what:
            self.faults[kind] += 1
            self._fabric.note(f"fault: {kind}: {what}")
        self._later(self._draw.expovariate(1 / self._gap_s), self._strike)

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        self._fabric.loop.call_later(delay_s, call, context=NATURE)

    def _until_calm(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call back later, if it is not calm by then."""
        self._later(delay_s, lambda: None if self._is_over else call())

    def _span_s(self) -> float:
        return self._draw.uniform(*self._draw.choice(SPANS_S))

    def _alive(self) -> list[Life]:
        return [life for life in self._fabric.lives if life.is_alive]

    def _hosts(self) -> list[str]:
        return [SCHEDULER_HOST, *(f"10.0.0.{index + 2}" for index in range(self._most))]

    # Deaths

    def _kill(self) -> str:
        alive = self._alive()
        if not alive:
            return ""
        life = self._draw.choice(alive)
        self._fabric.kill(life)
        return f"{life.name}, {self._comes_back(life)}"

    def _comes_back(self, life: Life) -> str:
        if self._draw.random() > COME_BACK or len(self._fabric.lives) >= MOST_LIVES:
            return "for good"
        delay_s = self._draw.uniform(*RESTART_S)
        self._until_calm(delay_s, lambda: self._fabric.start_if_absent(life.index))
        return f"for {1e3 * delay_s:.0f} ms"

    def _power_off(self) -> str:
        """Let a host vanish: nobody is told, and its connections stay until it is back."""
        alive = self._alive()
        if not alive:
            return ""
        life, span_s = self._draw.choice(alive), self._span_s()
        ways = [way for way in permutations(self._hosts(), 2) if life.process.host in way]
        self._fabric.links.cut(ways)
        self._fabric.kill(life)

        def back() -> None:
            self._fabric.links.heal(ways)
            self._fabric.start_if_absent(life.index)

        self._until_calm(span_s, back)
        return f"the host of {life.name}, for {1e3 * span_s:.0f} ms"

    def _restart_scheduler(self) -> str:
        fabric = self._fabric
        if fabric.scheduler is None:
            return ""
        fabric.kill_scheduler()
        delay_s = self._draw.uniform(*RESTART_S)
        fabric.set_clocks_back(self._draw.choice((0.0, 0.0, 5.0)))
        self._until_calm(delay_s, fabric.start_scheduler)
        return f"it is back in {1e3 * delay_s:.0f} ms"

    # Hangs

    def _hang(self) -> str:
        running = [life.process for life in self._alive() if not life.process.is_stopped]
        return self._stop(self._draw.choice(running)) if running else ""

    def _hang_scheduler(self) -> str:
        scheduler = self._fabric.scheduler
        return "" if scheduler is None or scheduler.is_stopped else self._stop(scheduler)

    def _stop(self, process: Process) -> str:
        span_s = self._span_s()
        process.stop()
        self._fabric.calls.unanswered(lambda line: line.client is process and process.is_stopped)
        self._until_calm(span_s, process.go_on)
        return f"{process.name} for {1e3 * span_s:.0f} ms"

    # The network

    def _cut(self) -> str:
        """Cut two hosts off from each other, in one direction or both."""
        one, other = self._draw.sample(self._hosts(), 2)
        ways = self._draw.choice(([(one, other)], [(one, other), (other, one)]))
        span_s, links = self._span_s(), self._fabric.links
        links.cut(ways)
        self._fabric.calls.unanswered(lambda line: any(links.is_cut(*way) and line.crosses(*way) for way in ways))
        self._until_calm(span_s, lambda: links.heal(ways))
        return f"{ways} for {1e3 * span_s:.0f} ms"

    def _break_call(self) -> str:
        lines = self._fabric.calls.lines
        if not lines:
            return ""
        line = self._draw.choice(lines)
        client_s, server_s = (self._draw.uniform(*NOTICE_S) * self._draw.choice((0, 1)) for _ in range(2))
        line.break_off(client_s, server_s)
        return f"{line}, noticed after {1e3 * client_s:.0f} and {1e3 * server_s:.0f} ms"

    def _break_connection(self) -> str:
        return self._fabric.links.break_one()

    def _change_link(self) -> str:
        host, share = self._draw.choice(self._hosts()), self._draw.choice(RATE_SHARES)
        self._set_rates(host, share)
        return f"{host} has {share} of its rate"

    def _set_rates(self, host: str, share: float) -> None:
        for direction in ("up", "down"):
            self._fabric.links.set_rate(host, direction, share * self._fabric.config.link_bps)

    def _be_late(self) -> str:
        span_s, most_s = self._span_s(), self._draw.uniform(*LATE_S)
        self._fabric.links.latency_s = self._usual_latency_s[0], most_s

        def usual() -> None:
            self._fabric.links.latency_s = self._usual_latency_s

        self._until_calm(span_s, usual)
        return f"by up to {1e3 * most_s:.0f} ms, for {1e3 * span_s:.0f} ms"

    # Who takes part

    def _join(self) -> str:
        here = {life.index for life in self._alive()}
        free = [index for index in range(self._most) if index not in here]
        if not free or len(self._fabric.lives) >= MOST_LIVES:
            return ""
        return self._fabric.start_worker(free[0]).name

    def _leave(self) -> str:
        alive = self._alive()
        if len(alive) < 2:
            return ""
        life = self._draw.choice(alive)
        life.leaves = True
        return life.name
