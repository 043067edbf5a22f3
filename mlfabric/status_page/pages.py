"""The status page's routes, and the stream that keeps it up to date.

As long as somebody watches, the state is asked for once a second, and becomes text once for all who watch. Who reads
too slowly is let go; its browser comes back by itself, and goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

from aiohttp import web

from mlfabric import clock
from mlfabric.telemetry.history import History

__all__ = ["StatusPages"]

EVERY_S = 1.0
MOST_AT_ONCE = 500
MOST_BEHIND = 8
"""Who has so many messages unread reads too slowly."""
WRITTEN_WITHIN_S = 10.0
COOKIE = "mlfabric-page"
STATIC = {"page.css": "text/css", "page.js": "text/javascript", "charts.js": "text/javascript"}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
State = Mapping[str, Any]
"""What JSON can carry: ``status``, as ``mlfabric status --json`` has it; ``open``, the entries that are not over."""


class StatusPages:
    """What is shown, and who watches.

    Args:
        history: what is over.
        ask: returns the present state; called on the pages' loop.
        token: whoever has it may look; "" lets everybody who can connect.
    """

    def __init__(self, history: History, ask: Callable[[], Awaitable[State]], token: str = "") -> None:
        self._history, self._ask, self._token = history, ask, token
        self._watching: dict[asyncio.Queue[bytes | None], int] = {}
        """By who watches, the number of the next entry that is new to it."""
        self._telling: asyncio.Task[None] | None = None
        self._process = secrets.token_hex(8)
        """Tells a browser that comes back whether entries are still counted as before."""

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        folder = files(__package__) / "static"
        shown = {"/": ("text/html", (folder / "index.html").read_bytes())}
        shown |= {f"/{name}": (kind, (folder / name).read_bytes()) for name, kind in STATIC.items()}

        async def show(request: web.Request) -> web.Response:
            kind, body = shown[request.path]
            return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

        pages = {**dict.fromkeys(shown, show), "/status": self._status, "/history": self._entries}
        for path, handler in {**pages, "/events": self._events}.items():
            application.router.add_get(path, self._guarded(handler))
        application.on_shutdown.append(self._end)

    def _guarded(self, handler: Handler) -> Handler:
        """Let those look who have the token: in the address, from which a cookie takes it, or in a header."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            _, _, shown = request.headers.get("Authorization", "").partition("Bearer ")
            if not self._token or any(map(self._is_token, (shown, request.cookies.get(COOKIE, "")))):
                return await handler(request)
            if not self._is_token(request.query.get("token", "")):
                raise web.HTTPUnauthorized(text="no token, or a wrong one: open the address that the scheduler says\n")
            response = web.HTTPSeeOther(request.path)
            response.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict", secure=request.secure)
            raise response

        return guarded

    def _is_token(self, shown: str) -> bool:
        return secrets.compare_digest(shown.encode(), self._token.encode())

    async def _status(self, request: web.Request) -> web.Response:
        return _json(await self._state())

    async def _entries(self, request: web.Request) -> web.Response:
        number, entries = self._history.since(0)
        return _json({"next": number, "entries": entries})

    async def _state(self) -> dict[str, Any]:
        now_ms = round(clock.wall_ns() / 1e6, 1)
        try:
            return {"now": now_ms, "process": self._process, **await self._ask()}
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text="the scheduler does not answer\n") from None

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Stream what is new, until the browser goes or reads too slowly."""
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue = asyncio.Queue[bytes | None](MOST_BEHIND)
        self._watching[queue] = self._begins_at(request.headers.get("Last-Event-ID", ""))
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())
        try:
            while (message := await queue.get()) is not None:
                async with asyncio.timeout(WRITTEN_WITHIN_S):
                    await response.write(message)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._watching.pop(queue, None)
        return response

    def _begins_at(self, last_id: str) -> int:
        """Return the number of the first entry that a browser does not have; 0 if it comes anew."""
        process, _, number = last_id.partition(":")
        return int(number) if process == self._process and number.isdecimal() and len(number) < 20 else 0

    async def _tell(self) -> None:
        """Tell all who watch what is new, once a second."""
        try:
            while self._watching:
                await self._tell_once()
                await asyncio.sleep(EVERY_S)
        finally:
            self._telling = None

    async def _tell_once(self) -> None:
        with suppress(web.HTTPServiceUnavailable):
            state = _event("state", await self._state())
            news: dict[int, tuple[int, bytes]] = {}
            for queue, number in list(self._watching.items()):
                if number not in news:
                    news[number] = self._news(number)
                self._watching[queue], messages = news[number]
                try:
                    queue.put_nowait(messages + state)
                except asyncio.QueueFull:
                    del self._watching[queue]
                    queue.get_nowait()
                    queue.put_nowait(None)

    def _news(self, number: int) -> tuple[int, bytes]:
        """Return the number of the next entry, and those from one on as messages; the last says how far it is."""
        end, entries = self._history.since(number)
        parts = [entries[at : at + MOST_AT_ONCE] for at in range(0, len(entries), MOST_AT_ONCE)]
        messages = [_event("entries", {"process": self._process, "entries": part}) for part in parts]
        last_id = f"id: {self._process}:{end}\n".encode()
        return end, b"".join([*messages[:-1], last_id, *messages[-1:]]) if messages else b""

    async def _end(self, application: web.Application) -> None:
        if self._telling is not None:
            self._telling.cancel()
        for queue in self._watching:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)


def _json(found: Any) -> web.Response:
    return web.json_response(found, headers=HEADERS)


def _event(name: str, found: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(found, separators=(',', ':'))}\n\n".encode()
