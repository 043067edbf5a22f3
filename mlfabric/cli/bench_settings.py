"""``--set KEY=VALUE`` of ``mlfabric bench``: settings are the parameters of a benchmark's ``run``, with their types."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_type_hints

from mlfabric.errors import UsageError

__all__ = ["settings_of"]

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    Sequence[int]: "whole numbers, as in [1,2]",
    Sequence[float]: "numbers, as in [0.5,1]",
}


def settings_of(run: Callable[..., Any], texts: Iterable[str]) -> dict[str, Any]:
    """Read settings; each text is KEY=VALUE.

    Args:
        run: what the settings are for; each parameter has a type of ``_WORDS``.

    Raises:
        UsageError: a text is no KEY=VALUE, there is no such setting, or the value is of another type.
    """
    hints = get_type_hints(run)
    kinds = {name: hints[name] for name in inspect.signature(run).parameters}
    return dict(_setting(text, kinds) for text in texts)


def _setting(text: str, kinds: dict[str, Any]) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"--set {text!r}; allowed: KEY=VALUE, as in --set rounds=3")
    if key not in kinds:
        raise UsageError(f"--set {text!r}; allowed: {', '.join(kinds)}")
    found = _read(value)
    if not _fits(found, kinds[key]):
        raise UsageError(f"--set {text!r}; allowed: {_WORDS[kinds[key]]}")
    return key, float(found) if kinds[key] is float else found


def _read(value: str) -> Any:
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError):
        return value


def _fits(found: Any, kind: Any) -> bool:
    if kind in (Sequence[int], Sequence[float]):
        item = int if kind == Sequence[int] else float
        return isinstance(found, list | tuple) and bool(found) and all(_fits(one, item) for one in found)
    if kind in (int, float):
        return isinstance(found, int if kind is int else int | float) and not isinstance(found, bool)
    return isinstance(found, kind)
