"""How rounds without a server are made: what a job may say of them. Pure."""

from __future__ import annotations

from mlfabric.errors import ConfigError
from mlfabric.values import dataclass

__all__ = ["MIXINGS", "MOST_KEPT", "QUORUMS", "RoundOptions"]

MIXINGS = ("ring", "exponential")
QUORUMS = ("solo", "majority", "full", "auto")
MOST_BETWEEN = 1_000
MOST_FRAGMENTS = 1_000
MOST_KEPT = 8
"""partial: a worker with so many gradients that are in no round does not go on without the next one."""
_MOST_TAU = 1_000
_MOST_AVERAGED = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    """Options of the methods whose workers apply rounds by themselves; every worker gives the same.

    Args:
        tau_max: elastic: how many rounds may be settled between the model that a gradient was computed from and the
            round that it is in, 0 to 1,000.
        at_least: elastic: the share of the workers that make a round at the least, above 0 and at most 1.
        quorum: partial: a round begins when this many have a gradient: ``"solo"`` is 1, ``"full"`` all; with
            ``"majority"`` it begins when a worker has one that is drawn anew for each round; with ``"auto"`` when
            to wait for more would let fewer gradients be in rounds per second. Or a number.
        full_every: partial: after this many rounds without some, one waits for all, 1 to 1,000.
        average_every: gossip: in each round whose number this divides, all workers come to the mean of all models; 0
            for never.
        mixing: dpsgd: who averages with whom; see ``methods.mixing``.
        fragments: local SGD, DiLoCo: into how many parts the model is cut, of which each round has one, in turn; 1 to
            1,000. Who has missed the round of a part cannot be in that of another, so then ``tau_max`` is 0.
    """

    tau_max: int = 2
    at_least: float = 0.5
    quorum: str = "majority"
    full_every: int = 32
    average_every: int = 0
    mixing: str = "ring"
    fragments: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.tau_max <= _MOST_TAU:
            raise ConfigError(f"tau_max={self.tau_max}; allowed: 0 to {_MOST_TAU} rounds")
        if not 0 < self.at_least <= 1:
            raise ConfigError(f"at_least={self.at_least}; allowed: above 0, at most 1")
        if self.quorum not in QUORUMS and not (self.quorum.isdecimal() and int(self.quorum)):
            raise ConfigError(f"quorum={self.quorum!r}; allowed: {', '.join(QUORUMS)}, or a number from 1")
        if not 1 <= self.full_every <= MOST_BETWEEN:
            raise ConfigError(f"full_every={self.full_every}; allowed: 1 to {MOST_BETWEEN}")
        if not 0 <= self.average_every <= _MOST_AVERAGED:
            allowed = f"1 to {_MOST_AVERAGED} rounds, or 0 for never"
            raise ConfigError(f"average_every={self.average_every}; allowed: {allowed}")
        if not 1 <= self.fragments <= MOST_FRAGMENTS:
            raise ConfigError(f"fragments={self.fragments}; allowed: 1 to {MOST_FRAGMENTS}")
        if self.fragments > 1 and self.tau_max:
            raise ConfigError(f"fragments={self.fragments} with tau_max={self.tau_max}; allowed: 0")
        if self.mixing not in MIXINGS:
            raise ConfigError(f"mixing={self.mixing!r}; allowed: {', '.join(MIXINGS)}")
