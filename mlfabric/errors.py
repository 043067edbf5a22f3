"""Everything mlfabric raises, as one tree.

    FabricError
    ├── UsageError            the caller's fault: says what was given, what is allowed, what to do
    │   ├── LayoutError       wrong tensor name, shape, dtype or length
    │   └── ConfigError       a setting that is unknown, malformed or out of range
    ├── RefusedError          the scheduler or server refused; nothing was changed
    ├── FencedError           a newer scheduler has succeeded this one, which ends
    ├── UnavailableError      a member that is needed cannot be reached (yet); worth trying again
    ├── TransferError         a data connection broke, or its peer broke the framing
    └── FabricClosedError     the fabric or this member has ended; nothing more will come

Three kinds are kept apart (style): an *expected refusal* is a returned value with a reason (see
``protocol.Dropped``); *somebody's fault* is one of these; a *broken invariant* is an ``AssertionError``
with its story, and ends the process.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "FabricClosedError",
    "FabricError",
    "FencedError",
    "LayoutError",
    "RefusedError",
    "TransferError",
    "UnavailableError",
    "UsageError",
]


class FabricError(Exception):
    """Base of every error that mlfabric raises on purpose."""


class UsageError(FabricError, ValueError):
    """The caller gave something that cannot be used; nothing was changed."""


class LayoutError(UsageError):
    """A tensor's name, shape, dtype or length does not fit the model's layout."""


class ConfigError(UsageError):
    """A setting is unknown, malformed or out of range."""


class RefusedError(FabricError):
    """The scheduler or a server refused a request; nothing was changed."""


class FencedError(FabricError):
    """A newer scheduler has succeeded this one."""


class UnavailableError(FabricError):
    """A member that is needed cannot be reached."""


class TransferError(FabricError):
    """A data connection broke, or its peer did not keep to the framing."""


class FabricClosedError(FabricError):
    """The fabric or this member has ended."""
