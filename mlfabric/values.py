"""Values that are made for every message: frozen dataclasses that cost as little as others.

The standard ``dataclass(frozen=True)`` sets each field through ``object.__setattr__``, for it has forbidden assignment
to itself; making a value of five fields takes four times as long then. So who assigns to a field is found here by mypy,
which sees the standard decorator, and not at run time; equality and hashes are those of a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    from functools import partial

    def dataclass(cls=None, /, *, frozen=False, eq=True, **options):
        """Make a dataclass, as the standard decorator does; if it is frozen, mypy sees to that alone."""
        if cls is None:
            return partial(dataclass, frozen=frozen, eq=eq, **options)
        hashed = frozen and eq and "__hash__" not in cls.__dict__
        return dataclasses.dataclass(cls, eq=eq, unsafe_hash=hashed, **options)


__all__ = ["dataclass"]
