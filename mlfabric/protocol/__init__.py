"""The messages between members and scheduler, as plain values. Pure.

Everything that a state machine receives (*events*) or returns (*instructions*) is one of these frozen values;
``mlfabric.wire`` turns them into protobuf messages and back. Every instruction names its receiver (``to``) and carries
its reason, which logs, metrics and the status page show.

Its modules say what they give; this package gives all of it, except ``lineage``, which answers questions about
versions.

Times are integer nanoseconds of the clock of the process that handles the value; no time is sent to another host.

The way of one update (design, section 3)::

    worker                scheduler                   server
      PushRequested  ──────▶
                            plan
      ◀────── Send ─────────┴───────── Expect ─────────▶
      ── offer, on the data channel ───────────────────▶
      ◀──────────────────────────────── grant, when its turn has come
      ── payload ──────────────────────────────────────▶  commits in seq order
      ◀──────────────────────────────── outcome: Committed(version, tau)
                            ◀───────── CommitsReported ──
"""

from __future__ import annotations

from mlfabric.protocol import (
    events,
    follower_values,
    identities,
    instructions,
    jobs,
    promotion,
    relays,
    round_values,
    sample_values,
    shard_values,
    timing_values,
)
from mlfabric.protocol.events import *
from mlfabric.protocol.follower_values import *
from mlfabric.protocol.identities import *
from mlfabric.protocol.instructions import *
from mlfabric.protocol.jobs import *
from mlfabric.protocol.promotion import *
from mlfabric.protocol.relays import *
from mlfabric.protocol.round_values import *
from mlfabric.protocol.sample_values import *
from mlfabric.protocol.shard_values import *
from mlfabric.protocol.timing_values import *

__all__ = []
__all__ += events.__all__
__all__ += follower_values.__all__
__all__ += identities.__all__
__all__ += instructions.__all__
__all__ += jobs.__all__
__all__ += promotion.__all__
__all__ += relays.__all__
__all__ += round_values.__all__
__all__ += sample_values.__all__
__all__ += shard_values.__all__
__all__ += timing_values.__all__
