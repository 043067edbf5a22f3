"""When a round may begin though some have not asked: a matter of how long the others took."""

from __future__ import annotations

from mlfabric.scheduler.rounds.rhythm import Rhythm

MS = 1_000_000


def names(count: int) -> list[str]:
    return [f"w{n}" for n in range(count)]


def rhythm(*asked_ms: int) -> Rhythm:
    """Of a round that was settled at 1 s."""
    one = Rhythm()
    one.settled(1000 * MS)
    for n, ms in enumerate(asked_ms):
        one.asked(f"w{n}", (1000 + ms) * MS)
    return one


def test_two_thirds_and_a_tenth_more_than_half_of_them_took_are_enough() -> None:
    assert rhythm(90, 100, 110, 120).early_ns(names(6)) == (1000 + 120 + 12) * MS
    assert rhythm(90, 100, 110, 120, 300).early_ns(names(6)) == (1000 + 120 + 12) * MS


def test_with_fewer_everyone_is_waited_for() -> None:
    assert rhythm(90, 100, 110).early_ns(names(6)) is None
    assert rhythm(90).early_ns(names(1)) is None


def test_before_any_round_was_settled_nobody_knows_who_is_late() -> None:
    one = Rhythm()
    for n in range(6):
        one.asked(f"w{n}", n * MS)
    assert one.early_ns(names(6)) is None


def test_asking_again_makes_nobody_later_and_each_round_is_counted_anew() -> None:
    one = rhythm(90, 100, 110)
    one.asked("w0", 2000 * MS)
    assert one.early_ns(names(3)) == (1000 + 100 + 10) * MS
    one.settled(3000 * MS)
    assert one.early_ns(names(3)) is None


def test_who_has_asked_and_is_gone_since_does_not_count() -> None:
    assert rhythm(90, 100, 110, 120).early_ns(["w3", "w4", "w5"]) is None
    assert rhythm(90, 100, 110, 120).early_ns(["w2", "w3", "w4"]) == (1000 + 120 + 12) * MS
