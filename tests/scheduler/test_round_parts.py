"""What it takes to find each worker's part in a round; what the parts are, rounds and their storms show."""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.methods.byte_trees import Trees
from mlfabric.scheduler.rounds.round_parts import parts_of

from .test_rounds import Team


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

    shape = Trees(start=0, end=64, root="a", parents=parents, sources=sources, rate_bps=7)
    parts = parts_of(team.state.context, [shape], ["a", *others], late=())

    assert [len(parts["a"][0].inputs), len(parts["a"][0].takers)] == [300, 300]
    assert parents.asked + sources.asked <= 5 * 600
