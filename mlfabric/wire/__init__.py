"""Values to protobuf messages and back; only shells import it.

``to_...`` takes a value of :mod:`mlfabric.protocol` or :mod:`mlfabric.specs` and makes its message; ``from_...`` takes
what came over the wire and makes the value, or raises :class:`~mlfabric.errors.UsageError` that names the field, what
was given and what is allowed. So nothing malformed gets past a shell, and ``from_x(to_x(v)) == v`` for every value.

What a message cannot say is given beside it: who sent an event, and for whom an instruction is.
"""

from __future__ import annotations

from mlfabric.wire.events import from_event, from_server_holds, to_event, to_server_holds
from mlfabric.wire.instructions import from_instruction, to_instruction
from mlfabric.wire.jobs import from_claim, from_job, from_server_epochs, to_claim
from mlfabric.wire.replicas import from_following
from mlfabric.wire.specs import (
    from_admission,
    from_member,
    from_spec,
    from_term,
    to_admission,
    to_member,
    to_spec,
    to_term,
)
from mlfabric.wire.values import (
    from_get_id,
    from_outcomes,
    from_transfer_id,
    from_version,
    to_get_id,
    to_outcomes,
    to_transfer_id,
    to_version,
)

__all__ = [
    "from_admission",
    "from_claim",
    "from_event",
    "from_following",
    "from_get_id",
    "from_instruction",
    "from_job",
    "from_member",
    "from_outcomes",
    "from_server_epochs",
    "from_server_holds",
    "from_spec",
    "from_term",
    "from_transfer_id",
    "from_version",
    "to_admission",
    "to_claim",
    "to_event",
    "to_get_id",
    "to_instruction",
    "to_member",
    "to_outcomes",
    "to_server_holds",
    "to_spec",
    "to_term",
    "to_transfer_id",
    "to_version",
]
