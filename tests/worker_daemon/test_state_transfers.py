"""A state goes over a connection that rounds have used before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel
from mlfabric.protocol import GiveState, Peer
from mlfabric.worker_daemon.round_inbox import StateImage
from mlfabric.worker_daemon.round_lines import RoundLines
from mlfabric.worker_daemon.state_transfers import StateTransfers

TICKET = bytes(16)
HELD_BPS = 1_000_000


async def test_what_a_round_has_held_back_gives_a_state_without_limit() -> None:
    channel, dialling = TcpChannel(), TcpChannel()
    lines, accepted = RoundLines(channel), list[Connection]()
    inbox: Any = SimpleNamespace(copy_state=lambda: StateImage(version=0, image=memoryview(bytes(1000))))
    states = StateTransfers(lines, inbox, "here", lambda _: None, lambda *_: None)

    async def serve(connection: Connection) -> None:
        connection.spread(HELD_BPS)
        connection.hold_back(HELD_BPS)
        accepted.append(connection)
        await lines.serve(connection)

    connection = await dialling.connect(await channel.listen(serve))
    states.give(GiveState(to="w", model="net", peer=Peer("b", "", TICKET), version=0, reason=""))
    await connection.send(Frame(kind=FrameKind.WANT, ticket=TICKET))
    frame = await connection.receive()
    await connection.discard(frame.length)
    stream: Any = accepted[0]._stream.raw
    assert (stream._held_bytes, accepted[0]._sender._spread_bps) == (0, 0)
    await states.close()
    await dialling.close()
    await channel.close()
