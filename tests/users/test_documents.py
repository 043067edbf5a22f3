"""Every command and snippet of README and docs: read by the real commands, and run where that takes seconds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlfabric.cli.app import app
from tests.commands import root, wrong
from tests.snippets import Block, blocks, commands_spoken_of, mistakes, outcome_of, prompted

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = list(blocks(DOCUMENTS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like the checkout to who reads examples, and can be written to."""
    for name in ("examples", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def those(*languages: str) -> list[object]:
    found = [block for block in BLOCKS if block.language in languages and not block.not_run]
    return [pytest.param(block, id=block.place) for block in found]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in BLOCKS])
def test_a_block_can_be_as_it_stands(block: Block):
    assert not mistakes(block), f"{block.place}: {'; '.join(mistakes(block))}"


@pytest.mark.parametrize("block", those("python"))
def test_a_snippet_runs(block: Block, folder: Path):
    said = outcome_of(block, folder)
    assert not said, f"{block.place}: {said}"


@pytest.mark.parametrize("block", those("console"))
def test_what_takes_seconds_and_changes_nothing_is_run(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    for command in prompted(block.text):
        if not command.is_harmless:
            continue
        program, *arguments = command.words
        if program == "mlfabric":
            done = CliRunner().invoke(app, arguments)
            assert done.exit_code == 0, f"{block.place}: {command.line}: {done.output}{done.exception or ''}"
        else:
            subprocess.run(command.words, check=True, capture_output=True)


SPOKEN = [path for path in DOCUMENTS if path.name != "guarantees.md"]  # all of that is looked at by test_guarantees.py


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in SPOKEN])
def test_commands_that_the_text_speaks_of_are_there(path: Path):
    wrongs = {code: wrong(code, is_whole=False) for code in commands_spoken_of(path.read_text())}
    assert not {code: why for code, why in wrongs.items() if why}


def test_every_table_of_figures_has_its_command_its_date_and_its_commit():
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    measured = re.compile(r"^Command: `mlfabric [^`]+`.*?Measured on 202\d-\d\d-\d\d at\s+[0-9a-f]{7}\b", re.M | re.S)
    sections = [section for section in text.split("\n## ") if "\n| --- " in section]
    assert sections
    for section in sections:
        assert measured.search(section.partition("\n| ")[0]), f"docs/benchmarks.md: {section.splitlines()[0]}"


def examples(command: object = None, path: str = "mlfabric") -> Iterator[tuple[str, str]]:
    """Give all examples in the help of a command and of those below it, and where each stands."""
    command = command or root()
    for line in (getattr(command, "epilog", None) or "").partition("Examples:")[2].splitlines():
        if line.strip():
            yield f"{path} --help", line.strip()
    for name, below in getattr(command, "commands", {}).items():
        yield from examples(below, f"{path} {name}")


@pytest.mark.parametrize("example", [pytest.param(line, id=line[:60]) for _, line in examples()])
def test_an_example_of_a_help_text_can_be_typed(example: str):
    for command in re.split(r"; |\s*[<|&]\s+.*$", example):
        assert wrong(command) == ""


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("console", "$ mlfabric rum -n 4 train.py", "No such command 'rum'"),
        ("console", "$ mlfabric run -n four train.py", "Invalid value for '--workers'"),
        ("console", "$ mlfabric run -n 4 --srvers 3 train.py", "--srvers"),
        ("console", "$ mlfabric run -n 4 examples/no_such.py", "there is no examples/no_such.py"),
        ("console", "$ mlfabric run -n 4 \\\n      --srvers 3 train.py", "--srvers"),
        ("console", "$ make tset", "make has no target tset"),
        ("console", "node1$ MLFABRIC_SCHEDULR=head:1 python train.py", "no command reads MLFABRIC_SCHEDULR"),
        ("console", "node1$ torchrun --nodes 2 train.py", "torchrun does not know --nodes"),
        ("console", "$ pip install 'mlfabric[exmples]'", "there is no extra exmples"),
        ("console", "$ frobnicate", "nobody knows what 'frobnicate' is"),
        ("console", "mlfabric version", "no line has a prompt"),
        ("python", "worker = mlfabric.register_as_a_worker(model)", "there is no mlfabric.register_as_a_worker"),
        ("python", "mlfabric.RuleSpec(learning_rate=1)", "mlfabric.RuleSpec has no argument learning_rate"),
        ("python", "for x in", "invalid syntax"),
        ("toml", "[up", "Expected"),
        ("", "$ make test", "a console's language is missing"),
        ("ruby", "puts 1", "language 'ruby'; allowed: console, python"),
    ],
)
def test_what_cannot_be_is_found(language: str, text: str, said: str):
    assert said in "; ".join(mistakes(Block("README.md:1", language, text, "")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("worker = mlfabric.register_as_worker(model)\nworker.fetch()", "line 2 of the block: AttributeError"),
        ("print(batchs)", "NameError: name 'batchs' is not defined; import it, or teach it tests/snippets.py"),
    ],
)
def test_a_snippet_that_does_not_run_says_where(text: str, said: str, folder: Path):
    assert said in outcome_of(Block("README.md:1", "python", text, ""), folder)
