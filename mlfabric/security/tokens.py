"""Tokens: secrets that show that whoever speaks in a member's name is that member. Pure but for drawing one.

The scheduler draws a token for each registration; the member shows it when it opens its session, and all that it says
comes over that. To a monitor a member shows a token of its own, which the scheduler makes from the monitor's: so the
monitor can check it, without having heard of the member, and no other member can make it.
"""

from __future__ import annotations

import hmac
import secrets

__all__ = ["new_token", "same_token", "token_at"]

TOKEN_BYTES = 16


def new_token() -> bytes:
    """Draw a token."""
    return secrets.token_bytes(TOKEN_BYTES)


def token_at(monitor_token: bytes, member: str) -> bytes:
    """Return the token that a member shows to a monitor.

    Args:
        monitor_token: of the monitor's session.
        member: the name under which it reports.
    """
    return hmac.digest(monitor_token, member.encode(), "sha256")[:TOKEN_BYTES]


def same_token(wanted: bytes, given: bytes) -> bool:
    """Tell whether a token is the one that is wanted, in a time that says nothing of it; an empty one never is."""
    return bool(wanted) and hmac.compare_digest(wanted, given)
