"""Signs of life of a member's process, sent from beside it: see ``beat.py`` for why, ``keeper.py`` for how it is used.

Shell-level, shared by every kind of member; the scheduler reads them (``scheduler/members/pulse_socket.py``).
"""

from mlfabric.pulse.beat import KEY_BYTES
from mlfabric.pulse.keeper import Watch, forget, watch

__all__ = ["KEY_BYTES", "Watch", "forget", "watch"]
