"""``mlfabric models``: lists the models that a fabric holds, and frees one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.cli import tables
from mlfabric.launch.model_removal import remove_model
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.security import CLIENT, Security
from mlfabric.v1 import fabric_pb2

__all__ = ["add_to"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, kw_only=True)
class _Model:
    """One line: a model, of one that is cut all parts together."""

    name: str
    job: str
    version: int
    size_bytes: int
    servers: list[str]
    workers: list[str]
    kept: bool
    state: str

    @classmethod
    def of(cls, parts: list[fabric_pb2.ModelStatus]) -> _Model:
        """Put the parts of a model together."""
        first = parts[0]
        return cls(
            name=first.whole,
            job=first.job,
            version=min(part.version.number for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            servers=[part.server for part in parts if part.server],
            workers=list(first.workers),
            kept=first.kept,
            state=first.stay,
        )


def models(
    context: typer.Context,
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    as_json: AsJson = False,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
) -> None:
    """List the models that the fabric holds, or free one.

    Says whose each is, who trains it now, and whether it is kept: a model ends with its job unless it is (keep=True, or
    a server with checkpoints).
    """
    if context.invoked_subcommand is None:
        asyncio.run(_list(StatusReader(scheduler, security=Security.of(tls, CLIENT, insecure=insecure)), as_json))


async def _list(asker: StatusReader, as_json: bool) -> None:
    async with asker as reader:
        found = _models((await reader.read()).models)
    if as_json:
        print(json.dumps([asdict(model) for model in found], indent=2))
        return
    heads = ("name", "job", "version", "size", "servers", "workers", "kept", "state")
    rows = [
        (
            *(model.name, model.job or "-", str(model.version), f"{model.size_bytes / 1e6:.1f} MB"),
            *(", ".join(model.servers) or "-", ", ".join(model.workers) or "-", "yes" if model.kept else "no"),
            model.state,
        )
        for model in found
    ]
    tables.console().print(tables.table("", heads, rows) if rows else "the fabric holds no model")


def _models(parts: Iterable[fabric_pb2.ModelStatus]) -> list[_Model]:
    whole: dict[str, list[fabric_pb2.ModelStatus]] = {}
    for part in parts:
        whole.setdefault(part.whole, []).append(part)
    return [_Model.of(found) for _, found in sorted(whole.items())]


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The model, as 'mlfabric models' lists it.")],
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
) -> None:
    """Free a model that nobody trains; its checkpoints go to the folder 'removed' beside the others.

    Ends with code 2 if there is no such model, or if workers train it.
    """
    asyncio.run(remove_model(scheduler, Security.of(tls, CLIENT, insecure=insecure), name))
    print(f"model {name} is gone")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(
        invoke_without_command=True, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
    )
    group.callback(
        epilog=opt.examples("mlfabric models", "mlfabric models --json", "mlfabric models remove trial-7/model")
    )(models)
    group.command(epilog=opt.examples("mlfabric models remove model"))(remove)
    app.add_typer(group, name="models")
