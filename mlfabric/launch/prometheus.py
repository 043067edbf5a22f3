"""A Prometheus beside an embedded fabric, if it is installed: it scrapes all services, and has the alerts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import mlfabric
from mlfabric.errors import UsageError
from mlfabric.launch.ports import check_free, free_port
from mlfabric.launch.processes import Program
from mlfabric.security import CLIENT
from mlfabric.security.certificate import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE

__all__ = ["Prometheus"]

HERE = "127.0.0.1"
USUAL_PORT = 9090
SCRAPED_EVERY = "5s"
_HOME = Path(mlfabric.__file__).parent
_RULES = (_HOME / "launch" / "prometheus_rules.yml", _HOME.parent / "deploy" / "prometheus" / "rules.yml")
"""Where the rules are in an installed package, and in a checkout."""


class Prometheus:
    """What is started, and where it will be.

    Args:
        folder: for its settings and data; made if it is not there.
        targets: by role, the addresses of these services' metrics.
        certificates: folder of the fabric's, a folder for each role; None for plain connections.

    Attributes:
        address: of its page, on this machine only, as it asks nobody who they are.

    Raises:
        UsageError: it is not installed, or the folder cannot be written.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]], certificates: Path | None = None) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise UsageError(
                "--with-prometheus: there is no program 'prometheus' here; install it (on Debian: apt install "
                "prometheus), or leave the option out"
            )
        self.address = f"http://{HERE}:{_port()}"
        settings = folder / "prometheus.yml"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            settings.write_text(json.dumps(_settings(targets, certificates), indent=2))  # JSON is YAML
        except OSError as error:
            raise UsageError(f"--with-prometheus: cannot write {settings}: {error.strerror}") from error
        self.program = Program(
            name="prometheus",
            argv=(
                program,
                f"--config.file={settings}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={urlsplit(self.address).netloc}",
                "--log.level=warn",
            ),
            environment=dict(os.environ),
        )


def _port() -> int:
    """Return the usual port if it is free, else any."""
    try:
        check_free(HERE, USUAL_PORT)
    except UsageError:
        return free_port(HERE)
    return USUAL_PORT


def _settings(targets: Mapping[str, Sequence[str]], certificates: Path | None) -> dict[str, object]:
    jobs = [
        {
            "job_name": f"mlfabric-{role}",
            "static_configs": [{"targets": list(found)}],
            **({} if certificates is None else _tls(role, certificates.resolve() / CLIENT)),
        }
        for role, found in targets.items()
    ]
    return {
        "global": {"scrape_interval": SCRAPED_EVERY, "evaluation_interval": SCRAPED_EVERY},
        "rule_files": [str(rules) for rules in _RULES if rules.exists()][:1],
        "scrape_configs": jobs,
    }


def _tls(role: str, own: Path) -> dict[str, object]:
    """Return how to ask a role's services, and as whom."""
    files = {"ca_file": AUTHORITY_FILE, "cert_file": CERTIFICATE_FILE, "key_file": KEY_FILE}
    who = {"server_name": f"{role}.mlfabric"}
    return {"scheme": "https", "tls_config": {**{key: str(own / name) for key, name in files.items()}, **who}}
