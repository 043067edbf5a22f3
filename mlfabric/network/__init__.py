"""Hosts, links, fixed paths, capacity over time and reservations; pure (design, section 5)."""

from mlfabric.network.draft import Draft
from mlfabric.network.links import CORE, LinkId, Path, down_link, up_link
from mlfabric.network.network import Network, Reservation
from mlfabric.network.profile import MAX_RATE_BPS, MAX_SIZE_BYTES, Piece, Profile
from mlfabric.network.timeline import HORIZON_NS

__all__ = [
    "CORE",
    "HORIZON_NS",
    "MAX_RATE_BPS",
    "MAX_SIZE_BYTES",
    "Draft",
    "LinkId",
    "Network",
    "Path",
    "Piece",
    "Profile",
    "Reservation",
    "down_link",
    "up_link",
]
