"""Settings of benchmarks that cannot be are refused before anything is started."""

from __future__ import annotations

from mlfabric.errors import UsageError

__all__ = ["at_least_one"]


def at_least_one(**settings: int) -> None:
    """Refuse numbers below 1; each is given under the name of its setting.

    Raises:
        UsageError: names the first of them.
    """
    for name, value in settings.items():
        if value < 1:
            raise UsageError(f"--set {name}={value}; allowed: 1 or more")
