"""What a launcher and its zygote say to each other, and a child to its launcher: values that are pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Began", "Kill", "Raised", "Returned", "Start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Tells the zygote to fork a child; answered by :class:`Began`.

    The child's ends of its pipes come beside it: of the one that brings its function and takes the outcome, of
    ``Child.messages``, and of the one on which the zygote says how it ended.

    Args:
        number: by which later orders mean it.
        namespace: to be in; empty for that of the launcher, with its host name.
        host_name: to have.
        environment: added to that of the zygote.
        output: path of the file for what it prints.
    """

    number: int
    namespace: str
    host_name: str
    environment: tuple[tuple[str, str], ...]
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Tells the zygote to send a signal to a child, if that has not ended."""

    number: int
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """Says that a child has begun.

    Args:
        pid: its process id.
    """

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What a child's function returned."""

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """What a child raised: in one line, and where."""

    summary: str
    traceback: str
