"""mlfabric: a control plane that takes over all transfers of a distributed training job.

A training script needs :func:`register_as_worker` (or :func:`wrap` around its optimizer); the services are started with
the ``mlfabric`` command, or in Python with :func:`register_as_server`, :func:`register_as_replica` and
:func:`register_as_aggregator`.
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
from mlfabric.model.specs import Method, MomentumAt, RuleKind, RuleSpec, Schedule
from mlfabric.protocol import Commit, Committed, Dropped, DropReason, GetId, Lost, ModelVersion, ReduceOp
from mlfabric.shell.forking import switch_grpc_handlers_off
from mlfabric.version import __version__

if TYPE_CHECKING:
    from mlfabric.aggregator.register import Aggregator, register_as_aggregator
    from mlfabric.aggregator.service import AggregatorOptions
    from mlfabric.server.callbacks import ModelView
    from mlfabric.server.register import Server, register_as_server
    from mlfabric.server.replica_register import ReplicaServer, register_as_replica
    from mlfabric.server.replica_service import ReplicaOptions
    from mlfabric.server.service import ServerOptions
    from mlfabric.worker_daemon.drop_compute import DropCompute, DropReport, drop_compute
    from mlfabric.worker_daemon.learners import Learners, LearnersReport
    from mlfabric.worker_daemon.local_steps import LocalOptimizer
    from mlfabric.worker_daemon.optimizer import FabricOptimizer
    from mlfabric.worker_daemon.reduce_tensors import ReduceHandle
    from mlfabric.worker_daemon.register import register_as_worker, wrap
    from mlfabric.worker_daemon.round_optimizer import RoundOptimizer
    from mlfabric.worker_daemon.sampler import FabricSampler
    from mlfabric.worker_daemon.step_roles import RoundOutcome
    from mlfabric.worker_daemon.worker import PushHandle, Worker

__all__ = [
    "Aggregator",
    "AggregatorOptions",
    "Commit",
    "Committed",
    "ConfigError",
    "DropCompute",
    "DropReason",
    "DropReport",
    "Dropped",
    "FabricClosedError",
    "FabricError",
    "FabricOptimizer",
    "FabricSampler",
    "GetId",
    "LayoutError",
    "Learners",
    "LearnersReport",
    "LocalOptimizer",
    "Lost",
    "Method",
    "ModelVersion",
    "ModelView",
    "MomentumAt",
    "PushHandle",
    "ReduceHandle",
    "ReduceOp",
    "RefusedError",
    "ReplicaOptions",
    "ReplicaServer",
    "RoundOptimizer",
    "RoundOutcome",
    "RuleKind",
    "RuleSpec",
    "Schedule",
    "Server",
    "ServerOptions",
    "TransferError",
    "UnavailableError",
    "UsageError",
    "Worker",
    "__version__",
    "drop_compute",
    "register_as_aggregator",
    "register_as_replica",
    "register_as_server",
    "register_as_worker",
    "wrap",
]

# These need torch or grpc, which the pure parts must not load; they are imported when first asked for.
_LAZY = {
    "Aggregator": "mlfabric.aggregator.register",
    "AggregatorOptions": "mlfabric.aggregator.service",
    "DropCompute": "mlfabric.worker_daemon.drop_compute",
    "DropReport": "mlfabric.worker_daemon.drop_compute",
    "FabricOptimizer": "mlfabric.worker_daemon.optimizer",
    "FabricSampler": "mlfabric.worker_daemon.sampler",
    "Learners": "mlfabric.worker_daemon.learners",
    "LearnersReport": "mlfabric.worker_daemon.learners",
    "LocalOptimizer": "mlfabric.worker_daemon.local_steps",
    "ModelView": "mlfabric.server.callbacks",
    "PushHandle": "mlfabric.worker_daemon.worker",
    "ReplicaOptions": "mlfabric.server.replica_service",
    "ReplicaServer": "mlfabric.server.replica_register",
    "ReduceHandle": "mlfabric.worker_daemon.reduce_tensors",
    "RoundOptimizer": "mlfabric.worker_daemon.round_optimizer",
    "RoundOutcome": "mlfabric.worker_daemon.step_roles",
    "Server": "mlfabric.server.register",
    "ServerOptions": "mlfabric.server.service",
    "Worker": "mlfabric.worker_daemon.worker",
    "drop_compute": "mlfabric.worker_daemon.drop_compute",
    "register_as_aggregator": "mlfabric.aggregator.register",
    "register_as_replica": "mlfabric.server.replica_register",
    "register_as_server": "mlfabric.server.register",
    "register_as_worker": "mlfabric.worker_daemon.register",
    "wrap": "mlfabric.worker_daemon.register",
}


switch_grpc_handlers_off()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mlfabric' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
