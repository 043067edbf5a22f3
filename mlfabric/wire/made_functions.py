"""Functions that are written by this package when they are first needed.

The text of a function names each field once and asks nothing that its types have answered, so it is as fast as one that
was written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlfabric.errors import UsageError
from mlfabric.wire.field_limits import malformed

__all__ = ["Lazy", "Text"]


class Text:
    """The text of a function, and the objects that it names.

    Args:
        arguments: of the function.
    """

    def __init__(self, *arguments: str) -> None:
        self._lines = [f"def made({', '.join(arguments)}):"]
        self._names: dict[str, Any] = {"malformed": malformed, "UsageError": UsageError}

    def add(self, *lines: str) -> None:
        self._lines += [f"    {line}" for line in lines]

    def named(self, thing: Any) -> str:
        """Return the name under which the text finds this."""
        name = f"_{len(self._names)}"
        self._names[name] = thing
        return name

    def made(self) -> Callable[..., Any]:
        exec("\n".join(self._lines), self._names)
        made: Callable[..., Any] = self._names["made"]
        return made


class Lazy(dict[Any, Any]):
    """A table that is filled as it is asked."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> Any:
        found = self[key] = self._make(key)
        return found
