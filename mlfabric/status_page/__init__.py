"""The scheduler's status page: what it knows and has decided, live, in a browser. It reads, and changes nothing."""

from mlfabric.status_page.pages import StatusPages

__all__ = ["StatusPages"]
