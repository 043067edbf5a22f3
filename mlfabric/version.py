"""The release, for packaging, members and people."""

__all__ = ["__version__"]

__version__ = "0.1.0"
