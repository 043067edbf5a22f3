"""Each worker's part in a round: both ends of every transfer, late workers last, and what it takes to find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mlfabric.methods.trees import Trees
from mlfabric.protocol import ReducePart
from mlfabric.scheduler.rounds.round_parts import parts_of

from .test_rounds import Team


def tree(parents: Mapping[str, str], sources: Mapping[str, str], **rates: Mapping[str, int]) -> Trees:
    return Trees(start=0, end=64, root="a", parents=parents, sources=sources, rate_bps=7, **rates)


def names(part: ReducePart) -> tuple[list[str], str | None, str | None, list[str]]:
    """From whom a worker has sums, to whom it sends, from whom it has the result, to whom it gives that."""
    parent, source = (None if peer is None else peer.worker for peer in (part.parent, part.source))
    return [peer.worker for peer in part.inputs], parent, source, [peer.worker for peer in part.takers]


def test_every_transfer_is_in_the_parts_of_both_ends_with_the_same_ticket_and_its_rate_at_the_sender() -> None:
    team = Team(*"abcd")
    shape = tree(
        {"b": "a", "c": "b", "d": "b"}, {"d": "a", "b": "a", "c": "d"}, sums_bps={"c": 5}, results_bps={"b": 6, "c": 0}
    )

    parts = parts_of(team.state.context, [shape], "abcd", late="c")

    (a,), (b,), (c,), (d,) = (parts[worker] for worker in "abcd")
    assert names(a) == (["b"], None, None, ["b", "d"])
    assert names(b) == (["d", "c"], "a", "a", [])
    assert names(c) == ([], "b", "d", [])
    assert names(d) == ([], "b", "a", ["c"])
    ends = [
        *((part.parent, peer) for part, peer in ((b, a.inputs[0]), (d, b.inputs[0]), (c, b.inputs[1]))),
        *((part.source, peer) for part, peer in ((b, a.takers[0]), (d, a.takers[1]), (c, d.takers[0]))),
    ]
    tickets = {peer.ticket for ours, peer in ends if ours is not None and ours.ticket == peer.ticket}
    assert len(tickets) == 6
    assert [ours.most_bps for ours, _ in ends if ours is not None] == [0, 0, 5, 0, 0, 0]
    assert [peer.most_bps for _, peer in ends] == [0, 0, 0, 6, 0, 0]
    assert b.parent is not None
    assert (b.parent.address, a.inputs[0].address, a.rate_bps, a.start, a.end) == ("a:1", "", 7, 0, 64)


class Counted(dict[str, str]):
    """Counts how often it is asked."""

    asked = 0

    def __getitem__(self, key: str) -> str:
        self.asked += 1
        return super().__getitem__(key)

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked += 1
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self.asked += len(self)
        return super().__iter__()


def test_what_parts_cost_grows_no_faster_than_the_transfers() -> None:
    others = [f"w{n}" for n in range(300)]
    team = Team("a", *others)
    parents, sources = Counted(dict.fromkeys(others, "a")), Counted(dict.fromkeys(others, "a"))

    parts = parts_of(team.state.context, [tree(parents, sources)], ["a", *others], late=())

    assert [len(parts["a"][0].inputs), len(parts["a"][0].takers)] == [300, 300]
    assert parents.asked + sources.asked <= 5 * 600
