"""What went wrong with a TLS connection, in words that say what to do. Pure."""

from __future__ import annotations

import ssl

__all__ = ["NO_TLS", "explain"]

NO_TLS = "the other end does not speak TLS; give both ends --tls, or none"
_EXPIRED = "certificate has expired"
_BY_REASON = {
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other end has shown no certificate; give it --tls",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other end wants a certificate; give --tls",
    "TLSV1_ALERT_UNKNOWN_CA": "the other end does not know the authority that made this member's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other end says that this member's certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other end does not accept this member's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other end does not accept this member's certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "the other end does not accept this member's certificate",
    "TLSV1_ALERT_ACCESS_DENIED": "the other end does not let this member in",
    "UNSUPPORTED_PROTOCOL": "the other end's TLS is older than 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other end does not speak TLS 1.3",
}
_OF_AUTHORITY = ("self-signed certificate", "unable to get local issuer", "unable to verify", "signature failure")


def explain(error: OSError) -> str:
    """Say what is wrong, and with whose certificate if it is that."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or str(error)
        if why.startswith(_OF_AUTHORITY):
            why = "another authority made it than the one in ca.pem"
        elif why == _EXPIRED:
            why = "it has expired; make new ones with: mlfabric certs"
        return f"the other end's certificate is no good: {why}"
    if isinstance(error, ssl.SSLEOFError):
        return f"the connection ended in the middle of the TLS handshake; {NO_TLS}"
    if isinstance(error, ssl.SSLError):
        return _BY_REASON.get(error.reason or "", f"TLS: {error.reason or error}")
    return error.strerror or str(error)
