"""Certificates: made by ``mlfabric certs``, read and checked at a member's start."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from mlfabric.errors import ConfigError, UnavailableError, UsageError
from mlfabric.security import ROLES, Certificate, Identity
from mlfabric.security.authority import certify, make_authority


def made(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["certs", *arguments])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.output


@pytest.fixture
def own(certificates: Path, tmp_path: Path) -> Path:
    """Return a copy of a worker's folder, to be spoilt."""
    return Path(shutil.copytree(certificates / "worker", tmp_path / "own"))


@pytest.mark.parametrize("role", ROLES)
def test_each_role_finds_its_own_in_the_folder_of_all_and_in_its_own(certificates: Path, role: str) -> None:
    for folder in (certificates, certificates / role):
        assert Certificate.load(folder, role).identity == Identity(role=role)


def test_the_command_makes_one_for_each_role_and_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    said = made(str(folder))
    assert "made the authority" in said
    before = {path: path.read_bytes() for path in folder.rglob("*.pem")}
    assert len(before) == 1 + 3 * len(ROLES)

    assert "worker: kept; --renew makes a new one" in made(str(folder))
    assert {path: path.read_bytes() for path in folder.rglob("*.pem")} == before

    made(str(folder), "--role", "server", "--renew")
    changed = {path.parent.name for path in folder.rglob("*.pem") if path.read_bytes() != before[path]}
    assert changed == {"server"}


def test_the_command_makes_one_for_a_job_and_a_name(tmp_path: Path) -> None:
    made(str(tmp_path), "--job", "a/b c", "--name", "w 1")
    found = Certificate.load(tmp_path / "worker-a%2Fb%20c-w%201", "worker")
    assert found.identity == Identity(role="worker", job="a/b c", name="w 1")


def test_nobody_else_may_read_a_key(tmp_path: Path) -> None:
    made(str(tmp_path), "--role", "worker")
    keys = [*tmp_path.rglob("*key*")]
    assert len(keys) == 2
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--role", "boss"), "--role boss; allowed: scheduler, server"),
        (("--role", "server", "--job", "j"), "only workers belong to a job"),
        (("--name", "n"), "give --role or --job with it"),
        (("--job", "j.shard1"), "give the whole one's name"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_made(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        made(str(tmp_path / "none"), *arguments)
    assert not (tmp_path / "none").exists()


def test_an_authority_without_its_key_makes_nothing(tmp_path: Path) -> None:
    make_authority(tmp_path, days=1)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is not; bring it, or give a new folder"):
        make_authority(tmp_path, days=1)


def test_without_openssl_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="apt install openssl"):
        make_authority(tmp_path / "new", days=1)


def test_an_expired_certificate_is_named_at_the_start(expired: Path) -> None:
    with pytest.raises(ConfigError, match=r"worker/cert\.pem is no good: it has expired; make new ones"):
        Certificate.load(expired, "worker")


def test_one_of_another_authority_is_named_at_the_start(own: Path, foreign: Path) -> None:
    shutil.copy(foreign / "ca.pem", own / "ca.pem")
    with pytest.raises(ConfigError, match=r"cert\.pem is no good: another authority made it than the one in ca\.pem"):
        Certificate.load(own, "worker")


def test_another_role_s_is_named_at_the_start(certificates: Path) -> None:
    with pytest.raises(ConfigError, match="is that of a worker; wanted: that of a server"):
        Certificate.load(certificates / "worker", "server")


def test_who_only_asks_may_do_so_with_anybody_s(certificates: Path) -> None:
    assert Certificate.load(certificates / "worker", "client").identity.role == "worker"


def test_a_folder_without_any_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="or in its folder 'monitor', as made by: mlfabric certs"):
        Certificate.load(tmp_path, "monitor")


@pytest.mark.parametrize("name", ["ca.pem", "key.pem"])
def test_a_file_that_is_missing_is_named(own: Path, name: str) -> None:
    (own / name).unlink()
    with pytest.raises(ConfigError, match=f"cannot read .*{name}: No such file"):
        Certificate.load(own, "worker")


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_a_file_that_is_no_certificate_is_refused(own: Path, name: str) -> None:
    (own / name).write_text("hello")
    with pytest.raises(ConfigError, match="cannot be used"):
        Certificate.load(own, "worker")


def test_another_one_s_key_is_refused(own: Path, certificates: Path) -> None:
    shutil.copy(certificates / "server" / "key.pem", own / "key.pem")
    with pytest.raises(ConfigError, match=r"key\.pem is not the key of cert\.pem"):
        Certificate.load(own, "worker")


def test_a_key_that_others_may_read_is_refused(own: Path) -> None:
    (own / "key.pem").chmod(0o644)
    with pytest.raises(ConfigError, match=r"others may read the key .*chmod 600"):
        Certificate.load(own, "worker")


def test_the_authority_s_own_certificate_is_no_member_s(own: Path, certificates: Path) -> None:
    shutil.copy(certificates / "ca.pem", own / "cert.pem")
    shutil.copy(certificates / "ca.key", own / "key.pem")
    with pytest.raises(ConfigError, match="is no good"):
        Certificate.load(own, "worker")


def test_a_name_is_part_of_the_certificate(tmp_path: Path) -> None:
    make_authority(tmp_path, days=1)
    own = certify(tmp_path, Identity(role="server", name="server-0"), days=1)
    assert own == tmp_path / "server-server-0"
    assert Certificate.load(own, "server").identity.name == "server-0"
