"""``mlfabric certs``: a test authority, and certificates for those who take part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.errors import UsageError
from mlfabric.security import ROLES, Identity
from mlfabric.security.authority import AUTHORITY_KEY_FILE, certify, folder_of, make_authority
from mlfabric.security.certificate import CERTIFICATE_FILE

__all__ = ["add_to"]


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the authority; made if it is not there.")],
    role: Annotated[
        str, typer.Option(help=f"Only for this role: {', '.join(ROLES)}. A replica has a server's certificate.")
    ] = "",
    job: Annotated[str, typer.Option(help="Only for workers, and only for the model of this name.")] = "",
    name: Annotated[str, typer.Option(help="With --role or --job: only for the member of this name.")] = "",
    days: Annotated[int, typer.Option(min=1, help="How long certificates are good.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Make those anew that are there.")] = False,
) -> None:
    """Make a test authority and certificates for mutual TLS.

    Without options there is one for each role, in folders of their names: --tls DIR then serves all on one machine. To
    another machine copy its member's folder alone, and give --tls that. Whoever has ca.key can be anybody: keep it.
    """
    wanted = _wanted(role, job, name)
    if make_authority(folder, days):
        print(f"made the authority {folder}; keep {folder / AUTHORITY_KEY_FILE} to yourself")
    for identity in wanted:
        own = folder / folder_of(identity)
        if (own / CERTIFICATE_FILE).exists() and not renew:
            print(f"{own}: kept; --renew makes a new one")
            continue
        print(f"{certify(folder, identity, days)}: for {_article(identity)} {identity}, {days} days")


def _wanted(role: str, job: str, name: str) -> list[Identity]:
    """Return for whom certificates are made.

    Raises:
        UsageError: the options do not fit each other.
    """
    if role and role not in ROLES:
        raise UsageError(f"--role {role}; allowed: {', '.join(ROLES)}")
    if job and role not in ("", "worker"):
        raise UsageError(f"--job {job} with --role {role}; only workers belong to a job")
    if role or job:
        return [Identity(role=role or "worker", job=job, name=name)]
    if name:
        raise UsageError(f"--name {name} alone; give --role or --job with it")
    return [Identity(role=each) for each in ROLES]


def _article(identity: Identity) -> str:
    return "an" if identity.role[0] in "aeiou" else "a"


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric certs certificates",
            "mlfabric up --tls certificates",
            "mlfabric certs certificates --job resnet",
            "mlfabric run -n 4 --tls certificates/worker-resnet --scheduler head-node:50061 --no-up train.py",
            "mlfabric certs certificates --role server --name server-0 --days 30 --renew",
        )
    )(certs)
