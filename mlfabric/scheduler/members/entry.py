"""What callers may do by their certificates. Shell-level; changes nothing."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Role
from mlfabric.protocol import MemberJoined
from mlfabric.security import CLIENT, Identity
from mlfabric.security.secure_grpc import caller_of

__all__ = ["caller", "check_is_member", "check_may_hold", "check_may_remove", "may_join"]

log = logging.getLogger("mlfabric.scheduler")
_Context = grpc.aio.ServicerContext[Any, Any]


async def caller(context: _Context) -> Identity | None:
    """Return who calls; None without TLS. A certificate that names nobody ends the call with PERMISSION_DENIED."""
    try:
        return caller_of(context)
    except ConfigError as error:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))


async def may_join(event: MemberJoined, context: _Context) -> Identity | None:
    """Return who calls, as ``caller`` does, if it may join like this; end the call with PERMISSION_DENIED if not."""
    found = await caller(context)
    model = event.spec.name if event.spec is not None else ""
    member = event.member
    reason = found.refusal(member.role, member.name, model, event.succeeds) if found is not None else None
    if reason is not None:
        log.warning("refused %s: %s", event.member.name, reason)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
    return found


async def check_may_hold(context: _Context) -> None:
    """End the call with PERMISSION_DENIED if who calls runs no jobs, as its certificate says."""
    found = await caller(context)
    if found is not None and found.role not in (CLIENT, Role.WORKER.value):
        reason = f"the certificate is that of a {found}, which runs no job"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)


async def check_may_remove(context: _Context, model: str) -> None:
    """End the call with PERMISSION_DENIED if who calls may not remove a model, as its certificate says."""
    found = await caller(context)
    is_allowed = found is None or found.role == CLIENT or (found.role == Role.WORKER.value and found.job == model)
    if not is_allowed:
        reason = f"the certificate is that of a {found}; it does not allow model {model!r}"
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)


async def check_is_member(context: _Context) -> None:
    """End the call with PERMISSION_DENIED if who calls can be no member, as its certificate says."""
    found = await caller(context)
    if found is not None and found.role == CLIENT:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"the certificate is that of a {found}, and no member")
