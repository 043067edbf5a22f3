"""``docs/guarantees.md`` against what is there: files, tests, options, and commands that can be typed as they stand."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mlfabric.cli import making
from mlfabric.cli.app import app
from mlfabric.errors import UsageError

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "guarantees.md"
PLACES = ("benchmarks/", "docs/", "examples/", "mlfabric/", "tests/")
BENEATH_MAKE = ("bench", "demo", "soak")
"""Targets whose ARGS are those of the command of that name."""


def named(text: str) -> list[str]:
    """Return what stands in code type in a text, also where a line ends within."""
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def wrong(code: str) -> str:
    """Return what is wrong with something in code type, "" if nothing is."""
    words = shlex.split(code)
    while (variable := re.fullmatch(r"([A-Z_]+)=.*", words[0])) is not None:
        if not any(variable[1] in path.read_text() for path in (ROOT / "scripts").iterdir()):
            return f"no script reads {variable[1]}"
        del words[0]
    match words:
        case ["make", target, *given]:
            return wrong_target(target, given)
        case ["mlfabric", *arguments]:
            return wrong_command(arguments)
        case ["scripts/test", *arguments]:
            return wrong_selection(arguments)
        case [path] if path.startswith(PLACES):
            return "" if (ROOT / path).exists() else f"there is no {path}"
        case [option] if option.startswith("-"):
            return "" if option in options(typer.main.get_command(app)) else f"no command has an option {option}"
        case [word] if re.fullmatch(r"\w+", word):
            return ""
    return f"nobody knows what {code!r} is"


def wrong_target(target: str, given: list[str]) -> str:
    targets = re.findall(r"^(\w+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if target not in targets:
        return f"make has no target {target}"
    arguments = [word for one in given for word in shlex.split(one.removeprefix("ARGS="))]
    return wrong_command([target, *arguments]) if target in BENEATH_MAKE else ""


def wrong_command(arguments: list[str]) -> str:
    shown = CliRunner().invoke(app, [*arguments, "--help"])  # says what it would do, if it can be asked to
    if shown.exit_code:
        return shown.output
    for option, value in pairwise(arguments):
        if option == "--set" and value.partition("=")[0] not in settings(arguments[1]):
            return f"bench {arguments[1]} has no setting {value}"
        if option == "--scenarios":
            try:
                making.benchmark("faults.bench").chosen(value, 1)
            except UsageError as error:
                return str(error)
    return ""


def settings(benchmark: str) -> set[str]:
    return set(inspect.signature(making.benchmark(benchmark).run).parameters)


@cache
def options(command: Any) -> frozenset[str]:
    """Return the options of a command and of all commands below it."""
    own = {option for parameter in command.params for option in parameter.opts}
    return frozenset(own.union(*(options(one) for one in getattr(command, "commands", {}).values())))


def wrong_selection(arguments: list[str]) -> str:
    places, words = list(arguments), list[str]()
    if "-k" in places:
        at = places.index("-k")
        words = [word for word in re.findall(r"\w+", places[at + 1]) if word not in ("and", "or", "not")]
        del places[at : at + 2]
    found = [name for place in places for name in names_in(ROOT / place)]
    missing = [place for place in places if not (place.startswith("tests") and (ROOT / place).exists())]
    unmatched = [word for word in words if not any(word in name for name in found)]
    if missing or unmatched:
        return f"there is no {', '.join(missing + unmatched)}"
    return "" if found else "it selects no test"


def names_in(place: Path) -> Iterator[str]:
    """Give the names of the tests of a file, or of all in a folder."""
    for path in place.rglob("test_*.py") if place.is_dir() else [place] * place.exists():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                yield node.name


def promises() -> list[str]:
    """Return the promises of the document, each of which is an item of a list."""
    text = DOCUMENT.read_text()
    kept = text[text.index("\n## Updates") : text.index("\n## What is not promised")]
    return re.findall(r"^- (.*?)(?=^- |^## |\Z)", kept, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", sorted(set(named(DOCUMENT.read_text()))))
def test_all_that_the_document_names_is_there(code: str) -> None:
    assert wrong(code) == ""


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise[:30])
def test_each_promise_has_tests_and_ends_with_a_command(promise: str) -> None:
    codes = named(promise)
    assert any("tests/" in code for code in codes)
    assert promise.rstrip().endswith("`")
    assert re.match(r"([A-Z_]+=\S+ )?(make|mlfabric|scripts/test) ", codes[-1])


@pytest.mark.parametrize("document", ["README.md", "docs/design.md"])
def test_it_is_linked_from_where_people_look(document: str) -> None:
    text = (ROOT / document).read_text()
    (link,) = set(re.findall(r"\]\(([^)]*guarantees\.md)\)", text))
    assert (ROOT / document).parent / link == DOCUMENT


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("make sope", "make has no target sope"),
        ("make soak ARGS='--hours 1'", "--hours"),
        ("NO_SUCH_SECONDS=3 make fuzz", "no script reads NO_SUCH_SECONDS"),
        ("mlfabric fuz", "fuz"),
        ("mlfabric fuzz --sedes 3", "--sedes"),
        ("mlfabric bench sloth", "sloth"),
        ("mlfabric bench silence --set hours=1", "bench silence has no setting hours=1"),
        ("mlfabric bench faults --scenarios flood", "--scenarios 'flood'"),
        ("scripts/test tests/no/such.py", "there is no tests/no/such.py"),
        ("scripts/test tests/server -k flying", "there is no flying"),
        ("scripts/test docs", "there is no docs"),
        ("tests/server/test_nothing.py", "there is no tests/server/test_nothing.py"),
        ("--no-such-option", "no command has an option --no-such-option"),
        ("pytest tests", "nobody knows what 'pytest tests' is"),
    ],
)
def test_what_is_not_there_is_found(code: str, said: str) -> None:
    assert said in wrong(code)
