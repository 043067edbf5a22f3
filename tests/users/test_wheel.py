"""The built wheel in an empty environment: pip and ``mlfabric run``, examples outside of the checkout, nothing else.

Needs a network or an index. Where pip finds PyTorch with CUDA only, that is several GB, which are gone afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest

pytestmark = [pytest.mark.long, pytest.mark.processes]

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = CHECKOUT / "scripts"
TORCH = next(line for line in (CHECKOUT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
ROOM_BYTES = 15e9


class Installed:
    """An environment that has the wheel and the examples' packages."""

    def __init__(self, folder: Path, scheduler: str) -> None:
        self.folder = folder
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MLFABRIC_", "PYTHON"))}
        self._environment = {**inherited, "MLFABRIC_SCHEDULER": scheduler}

    def call(self, *command: str | Path) -> tuple[int, str]:
        """Run a command in the folder; return exit code and all output."""
        done = subprocess.run(
            command, check=False, cwd=self.folder, env=self._environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    def install(self, python: str, *requirements: str) -> None:
        """Install the wheel for an interpreter, and train with it."""
        code, out = self.call(SCRIPTS / "try_wheel", self.folder, python, *requirements)
        assert code == 0, out
        accuracies = [float(found) for found in re.findall(r"accuracy (\S+)", out)]
        assert len(accuracies) == 2, out
        assert min(accuracies) > 0.8, out

    def mlfabric(self, *arguments: str) -> tuple[int, str]:
        """Run the environment's command."""
        return self.call(self.folder / "env/bin/mlfabric", *arguments)

    def check(self) -> None:
        """Have ``mlfabric doctor`` look, which is told of no scheduler."""
        code, out = self.call("env", "-u", "MLFABRIC_SCHEDULER", self.folder / "env/bin/mlfabric", "doctor")
        assert code == 0, out


@pytest.fixture
def wheel(free_port: int) -> Iterator[Installed]:
    with TemporaryDirectory(prefix="mlfabric-wheel-") as folder:
        if shutil.disk_usage(folder).free < ROOM_BYTES:
            pytest.skip(f"less than {ROOM_BYTES / 1e9:g} GB of room in {folder}")
        yield Installed(Path(folder), f"127.0.0.1:{free_port}")


def interpreter(version: str) -> str:
    """Return an interpreter of this version; skip where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (f"python{version}", *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))):
        try:
            subprocess.run([found, "-c", "import venv"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return found
    pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_two_commands_train_in_an_empty_environment(wheel: Installed, version: str):
    wheel.install(interpreter(version), TORCH)
    wheel.check()
    code, out = wheel.mlfabric("run", "-n", "2", "examples/digits_optimizer.py")
    assert (code, out.count("accuracy")) == (0, 2), out
    code, out = wheel.mlfabric("run", "-n", "2", "examples/digits_all_reduce.py")
    assert (code, out.count("accuracy")) == (0, 2), out


def test_the_least_versions_that_the_wheel_allows_train(wheel: Installed):
    least = subprocess.check_output([sys.executable, SCRIPTS / "least_versions"], text=True).split()
    wheel.install(interpreter("3.11"), *least)
    _, found = wheel.call(wheel.folder / "env/bin/pip", "freeze")
    assert {"grpcio==1.72.1", "protobuf==6.30.0"} <= set(found.splitlines())
    wheel.check()
    code, out = wheel.mlfabric("run", "-n", "2", "--aggregators", "1", "examples/digits_synchronous.py")
    assert code == 0, out


def test_the_wheel_has_all_of_the_package_and_says_what_needs_more(wheel: Installed):
    wheel.install(sys.executable, TORCH)
    (built,) = wheel.folder.glob("*.whl")
    names = {name for name in ZipFile(built).namelist() if ".dist-info/" not in name}
    listed = subprocess.check_output(["git", "ls-files", "mlfabric"], cwd=CHECKOUT, text=True)
    assert names == set(listed.split())
    assert "mlfabric/py.typed" in names
    code, out = wheel.mlfabric("demo")
    assert (code, "pip install 'mlfabric[demo]'" in out) == (2, True), out
    code, out = wheel.mlfabric("bench", "--help")
    assert (code, "Needs a checkout of the project" in out) == (0, True), out
    for command in (("bench", "control"), ("bench", "faults"), ("soak",), ("testbed",)):
        code, out = wheel.mlfabric(*command)
        assert (code, "in a checkout of the project" in " ".join(out.split())) == (2, True), out
    wheel.call(wheel.folder / "env/bin/pip", "install", "-q", "matplotlib>=3.9")
    code, out = wheel.mlfabric("demo")
    assert (code, "Result" in out) == (0, True), out
