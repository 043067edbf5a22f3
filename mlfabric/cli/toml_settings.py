"""Settings from a TOML file: one section for each command, its keys the command's options.

Typer looks for a value at the flag, then in the environment, then in the context's ``default_map``, which is filled
here, then takes the default. The whole file is checked, so that whichever command reads it first finds a misspelt key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from mlfabric.errors import ConfigError

__all__ = ["DEFAULT_FILE", "Key", "read_file", "use_file"]

DEFAULT_FILE = Path("mlfabric.toml")
SECTIONS = ("scheduler", "server", "aggregator", "monitor", "up", "run")
_NOT_IN_FILES = frozenset({"config", "help"})
_KINDS: dict[type, tuple[type | tuple[type, ...], str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
}
_ANYTHING = (str, int, float, list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of a settings file: the command's parameter that it sets, and the type of that parameter's default."""

    parameter: str
    kind: type = str


def use_file(context: typer.Context, path: Path | None) -> Path | None:
    """Give the command its section of the file; for a ``--config`` option's eager callback.

    Raises:
        ConfigError: the file is missing, malformed, or has what no command takes.
    """
    found = path or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    if found is None or context.parent is None:
        return None
    commands = getattr(context.parent.command, "commands", {})
    allowed = {name: _keys(commands[name]) for name in SECTIONS if name in commands}
    context.default_map = read_file(found, allowed).get(context.info_name or "", {})
    return found.resolve()


def _keys(command: Any) -> dict[str, Key]:
    """Return a command's long options, without dashes in front and with underscores, and what each sets."""
    options = [p for p in command.params if p.param_type_name == "option"]
    longest = {max(p.opts, key=len).lstrip("-").replace("-", "_"): p for p in options}
    keys = {key: Key(parameter=str(p.name), kind=type(p.default)) for key, p in longest.items()}
    return {key: found for key, found in keys.items() if key not in _NOT_IN_FILES}


def read_file(path: Path, allowed: Mapping[str, Mapping[str, Key]]) -> dict[str, dict[str, object]]:
    """Read a settings file.

    Args:
        path: of the file.
        allowed: for each section its keys.

    Returns:
        For each section its values by parameter; lists are joined with commas.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or has a section or key that is not allowed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"settings file {path}: {error.strerror}; give a file that exists, or no --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path} is no TOML: {error}") from error
    return {section: _section(path, section, values, allowed) for section, values in document.items()}


def _section(path: Path, section: str, values: object, allowed: Mapping[str, Mapping[str, Key]]) -> dict[str, object]:
    if section not in allowed or not isinstance(values, dict):
        sections = ", ".join(f"[{name}]" for name in allowed)
        raise ConfigError(f"settings file {path}: {section!r} is no section; allowed: {sections}")
    keys = allowed[section]
    out: dict[str, object] = {}
    for written, value in values.items():
        key = written.replace("-", "_")
        if key not in keys:
            raise ConfigError(f"settings file {path}: [{section}] has {written!r}; allowed: {', '.join(sorted(keys))}")
        out[keys[key].parameter] = _value(value, keys[key].kind, f"settings file {path}: [{section}] {written}")
    return out


def _value(value: object, kind: type, where: str) -> object:
    types, words = _KINDS.get(kind, (_ANYTHING, "text or a number, or a list of those"))
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where} = {value!r}; allowed: {words}")
    return ",".join(map(str, value)) if isinstance(value, list) else value
