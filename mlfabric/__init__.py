"""mlfabric: a control plane that takes over all transfers of a distributed training job.

A training script needs :func:`register_as_worker` (or :func:`wrap` around its optimizer); the services are started with
the ``mlfabric`` command, or in Python with :func:`register_as_server`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlfabric.errors import (
    ConfigError,
    FabricClosedError,
    FabricError,
    LayoutError,
    RefusedError,
    TransferError,
    UnavailableError,
    UsageError,
)
from mlfabric.protocol import Committed, Dropped, DropReason, Lost, ModelVersion
from mlfabric.specs import RuleSpec, Schedule
from mlfabric.version import __version__

if TYPE_CHECKING:
    from mlfabric.server.register import Server, register_as_server
    from mlfabric.server.service import ServerOptions
    from mlfabric.worker_daemon.optimizer import FabricOptimizer
    from mlfabric.worker_daemon.register import register_as_worker, wrap
    from mlfabric.worker_daemon.worker import PushHandle, Worker

__all__ = [
    "Committed",
    "ConfigError",
    "DropReason",
    "Dropped",
    "FabricClosedError",
    "FabricError",
    "FabricOptimizer",
    "LayoutError",
    "Lost",
    "ModelVersion",
    "PushHandle",
    "RefusedError",
    "RuleSpec",
    "Schedule",
    "Server",
    "ServerOptions",
    "TransferError",
    "UnavailableError",
    "UsageError",
    "Worker",
    "__version__",
    "register_as_server",
    "register_as_worker",
    "wrap",
]

# These need torch or grpc, which the pure parts must not load; they are imported when first asked for.
_LAZY = {
    "FabricOptimizer": "mlfabric.worker_daemon.optimizer",
    "PushHandle": "mlfabric.worker_daemon.worker",
    "Server": "mlfabric.server.register",
    "ServerOptions": "mlfabric.server.service",
    "Worker": "mlfabric.worker_daemon.worker",
    "register_as_server": "mlfabric.server.register",
    "register_as_worker": "mlfabric.worker_daemon.register",
    "wrap": "mlfabric.worker_daemon.register",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mlfabric' has no attribute {name!r}")
