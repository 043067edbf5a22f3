"""What can be typed, in documents and help texts: read by the real commands, with nothing done."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.exceptions import TyperException

from mlfabric.cli import bench_command
from mlfabric.cli.app import app
from mlfabric.cli.bench_settings import settings_of
from mlfabric.errors import FabricError

__all__ = ["HARMLESS", "options", "parsed", "root", "wrong"]

ROOT = Path(__file__).parents[1]
PLACES = ("benchmarks/", "docs/", "examples/", "mlfabric/", "proto/", "scripts/", "tests/")
BENEATH_MAKE = ("bench", "demo", "soak")
"""Targets whose ARGS are those of the command of that name."""
OF_THE_SYSTEM = frozenset({"cd", "curl", "export", "git", "ls", "mkfifo", "scp", "source", "sudo", "ssh"})
"""Commands of others, of which nothing is checked but variables that they set for ours."""
HARMLESS = frozenset({("mlfabric", "certs"), ("mlfabric", "plan"), ("mlfabric", "version"), ("make", "help")})
"""Commands that take seconds and change nothing but files in the present folder."""


class BrokenError(Exception):
    """Why a command cannot be."""


@cache
def root() -> Any:
    """Return the command ``mlfabric``."""
    return typer.main.get_command(app)


def wrong(line: str, *, is_whole: bool = True) -> str:
    """Return what is wrong with a command line, "" if nothing is.

    Args:
        line: as it is typed, without the prompt; may have a comment.
        is_whole: arguments that the command needs are there; else it is only spoken of.
    """
    try:
        words = shlex.split(line, comments=True)
        while words and (variable := re.fullmatch(r"(\w+)=.*", words[0])):
            _check_variable(variable[1])
            del words[0]
        _check(words, is_whole)
    except (BrokenError, FabricError, ValueError) as error:
        return str(error)
    return ""


def _check(words: Sequence[str], is_whole: bool) -> None:
    match words:
        case []:
            return
        case ["mlfabric" | ".venv/bin/mlfabric", *arguments]:
            parsed(arguments, is_whole=is_whole)
        case ["make", *arguments]:
            _check_make(arguments)
        case ["scripts/test", *arguments]:
            _check_selection(arguments)
        case [script, *_] if script.startswith("scripts/"):
            _check_script(script)
        case ["torchrun", *arguments]:
            _check_torchrun(arguments)
        case [python, script, *_] if re.fullmatch(r"(\.venv/bin/)?python3?", python) and not script.startswith("-"):
            _check_script(script)
        case ["diff", *files]:
            for file in files:
                _check_script(file)
        case ["pip" | ".venv/bin/pip", "install", *packages]:
            _check_extras(packages)
        case ["export", *variables]:
            for variable in variables:
                _check_variable(variable.partition("=")[0])
        case [command, *_] if command in OF_THE_SYSTEM:
            return
        case _:
            raise BrokenError(
                f"nobody knows what {shlex.join(words)!r} is; if it is good, tests/commands.py has to know it"
            )


def parsed(arguments: Sequence[str], *, is_whole: bool = True) -> dict[str, Any]:
    """Read the arguments of ``mlfabric`` as the command itself does; return its parameters.

    Raises:
        BrokenError, FabricError: the command would refuse them; says why.
    """
    command = root()
    context, name, words = None, "mlfabric", list(arguments)
    try:
        while True:
            context = command.make_context(name, words, parent=context)
            words = [*context._protected_args, *context.args]
            if not hasattr(command, "commands") or not words:
                break
            name, command, words = command.resolve_command(context, words)
    except typer.Exit:  # --help
        return {}
    except TyperException as error:
        if not is_whole and type(error).__name__ in ("MissingParameter", "NoArgsIsHelpError"):
            return {}
        told = getattr(error, "format_message", error.__str__)()
        raise BrokenError(f"mlfabric {shlex.join(arguments)}: {told}") from error
    _check_choices(name, context.params)
    return dict(context.params)


def _check_choices(name: str, found: dict[str, Any]) -> None:
    """Have a command look at what it reads only once it runs."""
    if name in bench_command.MEASURED and found.get("settings"):
        settings_of(bench_command.benchmark(name).run, found["settings"])
    if name == "faults" and found.get("scenarios"):
        bench_command.benchmark("faults.bench").chosen(found["scenarios"], 1)
    script = (found.get("command") or [""])[0] if name == "run" else found.get("file") or ""
    if str(script).startswith(PLACES) and not (ROOT / script).exists():
        raise BrokenError(f"there is no {script}")


def _check_variable(name: str) -> None:
    """Look for who reads a variable of the environment."""
    ours = name.startswith("MLFABRIC_")
    readers = (ROOT / "mlfabric").rglob("*.py") if ours else (ROOT / "scripts").iterdir()
    if not any(name in path.read_text() for path in readers if path.is_file()):
        raise BrokenError(f"no {'command' if ours else 'script'} reads {name}")


def _check_make(words: Sequence[str]) -> None:
    targets = [word for word in words if "=" not in word]
    known = re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in targets:
        if target not in known:
            raise BrokenError(f"make has no target {target}")
    given = [word for one in words if one.startswith("ARGS=") for word in shlex.split(one.removeprefix("ARGS="))]
    for target in targets:
        if target in BENEATH_MAKE and given:
            parsed([target, *given])


def _check_script(path: str) -> None:
    """A script of ours must be there; ``train.py`` stands for one of the reader's."""
    if path.startswith(PLACES) and not (ROOT / path).exists():
        raise BrokenError(f"there is no {path}")


def _check_torchrun(arguments: Sequence[str]) -> None:
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        found, unknown = parser.parse_known_args(arguments)
    except SystemExit as error:
        raise BrokenError(f"torchrun refuses {shlex.join(arguments)}") from error
    if unknown:
        raise BrokenError(f"torchrun does not know {shlex.join(unknown)}")
    _check_script(found.training_script)


def _check_extras(packages: Sequence[str]) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"\[([\w,]+)\]", " ".join(packages)):
        for extra in extras.split(","):
            if extra not in known:
                raise BrokenError(f"there is no extra {extra}; allowed: {', '.join(known)}")


def _check_selection(arguments: Sequence[str]) -> None:
    places, words = list(arguments), list[str]()
    if "-k" in places:
        at = places.index("-k")
        words = [word for word in re.findall(r"\w+", places[at + 1]) if word not in ("and", "or", "not")]
        del places[at : at + 2]
    found = [name for place in places for name in _tests_in(ROOT / place)]
    missing = [place for place in places if not (place.startswith("tests") and (ROOT / place).exists())]
    unmatched = [word for word in words if not any(word in name for name in found)]
    if missing or unmatched:
        raise BrokenError(f"there is no {', '.join(missing + unmatched)}")
    if not found:
        raise BrokenError("it selects no test")


def _tests_in(place: Path) -> Iterator[str]:
    """Give the names of the tests of a file, or of all in a folder."""
    for path in place.rglob("test_*.py") if place.is_dir() else [place] * place.exists():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                yield node.name


@cache
def options(command: Any = None) -> frozenset[str]:
    """Return the options of a command and of all commands below it; of all there are unless one is given."""
    command = command or root()
    own = {option for parameter in command.params for option in parameter.opts}
    return frozenset(own.union(*(options(one) for one in getattr(command, "commands", {}).values())))
