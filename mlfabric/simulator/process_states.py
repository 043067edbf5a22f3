"""Processes of a simulated fabric: where each runs, what its clock shows, and whether it is stopped. Pure.

Every event in the world's queue belongs to the process that takes it in. One that is stopped (SIGSTOP, a page that is
read from a slow disk) takes nothing in; what came meanwhile it takes in at once, in order, when it goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlfabric.simulator.world import Timer

__all__ = ["NATURE", "Process"]


class Process:
    """One process.

    Args:
        name: of the member.
        host: where it is.
        ahead_ns: how far its clock is ahead of the world's.

    Attributes:
        kept: what it takes in once it goes on; None while it runs.
    """

    __slots__ = ("ahead_ns", "host", "kept", "name")

    def __init__(self, name: str, host: str, ahead_ns: int = 0) -> None:
        self.name = name
        self.host = host
        self.ahead_ns = ahead_ns
        self.kept: list[Timer] | None = None

    @property
    def is_stopped(self) -> bool:
        """Tell whether it takes nothing in for the time being."""
        return self.kept is not None


NATURE = Process("nature", "nowhere")
"""Whose events nobody can stop: faults, bytes on links."""
