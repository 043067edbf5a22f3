"""Whatever happens to an aggregator, in whatever order: what must hold for everybody who talks to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.aggregator import actions as act
from mlfabric.protocol import SumId, Tick, TransferId
from tests.aggregator.stage import (
    SIZE,
    Stage,
    broken,
    cancel,
    committed,
    offer,
    order,
    outcomes,
    sealed,
    sum_id,
    unusable,
    update,
)

UPDATES = [update(f"w{i}") for i in range(4)]
TRANSFERS: list[TransferId] = [*UPDATES, sum_id(90), sum_id(91)]
_TRANSFER = st.sampled_from(TRANSFERS)
_COUNTER = st.integers(1, 4)
_SECONDS = st.sampled_from([0.1, 3.0, 6.0])


@st.composite
def _orders(draw: Any) -> Any:
    transfers = draw(st.lists(_TRANSFER, min_size=1, max_size=3, unique=True))
    after = {t: draw(st.lists(_TRANSFER, max_size=1)) for t in transfers}
    counter, cut_through = draw(_COUNTER), draw(st.booleans())
    images, seq = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return order(
        counter, *transfers, after=after, members=tuple(UPDATES), cut_through=cut_through, images=images, seq=seq
    )


_PICK = st.integers(0, 5)
_STEPS = st.lists(
    st.one_of(
        _orders(),
        st.tuples(st.sampled_from(["offer", "offer", "stray", "seal", "seal", "break", "unusable"]), _PICK),
        st.tuples(st.sampled_from(["sent", "settled", "failed", "cancel"]), _PICK),
        st.tuples(st.just("wait"), _SECONDS),
    ),
    min_size=15,
    max_size=60,
)


def _pick(among: Any, number: int) -> Any:
    """Return one of these, whatever the number; None if there is none."""
    found = sorted(among, key=str)
    return found[number % len(found)] if found else None


class _World:
    """Peers that keep to the protocol: each offers on a connection of its own and does what it is allowed to do."""

    def __init__(self) -> None:
        self.stage = Stage(budget_sums=2)
        self.open: dict[int, TransferId] = {}
        self.granted: dict[TransferId, int] = {}
        self.answers: Counter[int] = Counter()
        self.connections = 0
        self.sealable: set[Any] = set()
        self.reserved: set[Any] = set()

    def step(self, step: Any) -> None:
        sums, inputs = self.stage.state.sums.sums, self.stage.state.sums.inputs
        match step:
            case ("wait", seconds):
                self._do(self.stage.tick(seconds))
            case ("offer", number):
                self._offer(_pick([t for t, one in inputs.items() if one.connection is None], number))
            case ("stray", number):
                self._offer(TRANSFERS[number])
            case (("seal" | "break" | "unusable") as what, number):
                self._end_input(what, _pick(self.granted, number))
            case ("cancel" | "settled" | "failed" | "sent", number):
                self._end_sum(step[0], _pick(self.sealable if step[0] == "sent" else sums, number))
            case _:
                self._do(self.stage.tell(step))

    def _offer(self, transfer: TransferId | None) -> None:
        if transfer is not None:
            self.connections += 1
            self.open[self.connections] = transfer
            one = self.stage.state.sums.inputs.get(transfer)
            size_bytes = one.plan.size_bytes if one is not None else SIZE
            self._do(self.stage.tell(offer(transfer, self.connections, length=size_bytes)))

    def _end_input(self, what: str, transfer: TransferId | None) -> None:
        if transfer is not None:
            connection = self.granted.pop(transfer)
            if what == "break":
                del self.open[connection]
                self.answers[connection] += 1
            event: Any = {"seal": sealed, "break": broken, "unusable": unusable}[what](transfer, connection)
            self._do(self.stage.tell(event))

    def _end_sum(self, what: str, which: SumId | None) -> None:
        if which is not None:
            self.sealable.discard(which)
            event: Any = {
                "sent": act.SumSealed(sum=which),
                "failed": act.SumFailed(sum=which, detail="no"),
                "cancel": cancel(which.counter),
                "settled": outcomes(which.counter, *((u, committed(1)) for u in UPDATES)),
            }[what]
            self._do(self.stage.tell(event))

    def _do(self, actions: list[act.Action]) -> None:
        for action in actions:
            match action:
                case act.Grant():
                    assert action.sum in self.reserved, "granted without an accumulator"
                    assert self.open.get(action.connection) == action.transfer, "granted to somebody else"
                    self.granted[action.transfer] = action.connection
                case act.Answer() | act.Refuse() | act.Abandon():
                    self.answers[action.connection] += 1
                    transfer = self.open.pop(action.connection)
                    if self.granted.get(transfer) == action.connection:
                        del self.granted[transfer]
                case act.ReserveSum():
                    assert action.plan.sum not in self.reserved, "reserved twice"
                    self.reserved.add(action.plan.sum)
                case act.SealSum():
                    self.sealable.add(action.sum)
                case act.ForgetSum():
                    self.reserved.discard(action.plan.sum)
                case act.GiveUp():
                    self.reserved.discard(action.sum)
                    self.sealable.discard(action.sum)


@given(_STEPS)
def test_everybody_who_offers_gets_one_answer_and_nothing_is_left_when_all_is_over(steps):
    world = _World()
    for step in steps:
        world.step(step)

    world._do(world.stage.tell(act.EpochBegan(epoch=9)))
    world._do(world.stage.tick(6))

    assert not world.open
    assert not world.reserved
    assert all(world.answers[c] == 1 for c in range(1, world.connections + 1))
    assert not world.stage.state.sums.sums
    assert world.stage.tell(Tick()) == []
    assert world.stage.state.next_wakeup_ns() is None
