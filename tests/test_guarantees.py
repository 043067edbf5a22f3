"""``docs/guarantees.md`` against what is there: files, tests, options, and commands that can be typed as they stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import commands

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "guarantees.md"
SHARED = ("mlfabric.errors", "mlfabric.protocol", "mlfabric.model.specs", "mlfabric.v1")
PLACES = ("benchmarks/", "docs/", "examples/", "mlfabric/", "tests/")


def named(text: str) -> list[str]:
    """Return what stands in code type in a text, also where a line ends within."""
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def wrong(code: str) -> str:
    """Return what is wrong with something in code type, "" if nothing is."""
    match code.split():
        case [path] if path.startswith(PLACES):
            return "" if (ROOT / path).exists() else f"there is no {path}"
        case [option] if option.startswith("-"):
            return "" if option in commands.options() else f"no command has an option {option}"
        case [word] if re.fullmatch(r"\w+", word):
            return ""
    return commands.wrong(code, is_whole=False)


def shipped(path: Path) -> set[str]:
    """Return the modules of mlfabric that a test uses itself, or through tools of tests and benchmarks."""
    found, waiting, seen = set[str](), [path, path.parent / "conftest.py"], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for name in modules_in(file):
            if name.startswith("mlfabric"):
                found.add(name)
            waiting.append(ROOT / f"{name.replace('.', '/')}.py" if name.startswith(("benchmarks", "tests")) else ROOT)
    return found


def modules_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


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


@pytest.mark.parametrize("name", sorted(set(re.findall(r"tests/[\w/]+\.py", "".join(promises())))))
def test_each_test_that_is_named_exercises_what_ships(name: str) -> None:
    """Not only the judge of the benchmarks, a simulator's double, or values that everything shares."""
    assert {module for module in shipped(ROOT / name) if not module.startswith(SHARED)}


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
        ("mlfabric bench silence --set hours=1", "'hours=1'; allowed: trials, minutes"),
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
