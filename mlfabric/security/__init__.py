"""Who may connect to whom, and how that is secured: certificates, roles, mutual TLS, and when there must be some.

``identity`` and ``faults`` are pure; only shells import the rest.
"""

from mlfabric.security.certificate import Certificate, peer_identity
from mlfabric.security.identity import CLIENT, ROLES, SCHEDULER, Identity
from mlfabric.security.tls_faults import NO_TLS, explain
from mlfabric.security.tls_policy import LOOPBACK, Security, is_loopback

__all__ = [
    "CLIENT",
    "LOOPBACK",
    "NO_TLS",
    "ROLES",
    "SCHEDULER",
    "Certificate",
    "Identity",
    "Security",
    "explain",
    "is_loopback",
    "peer_identity",
]
