"""A user's file, and one table of it, read key by key: each of its kind, none unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

from mlfabric.config import parse_rate, parse_size
from mlfabric.errors import ConfigError

__all__ = ["Fields", "read_text"]

_Choice = TypeVar("_Choice", bound=Enum)
_MISSING = object()


def read_text(path: Path, wanted: str) -> str:
    """Return what a user's file holds.

    Args:
        path: of the file.
        wanted: what to give instead, for errors.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give {wanted}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error}; give {wanted}") from error


class Fields:
    """A table's values; ``done`` refuses whatever nobody asked for.

    Args:
        where: names the table in errors.
    """

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where} is {_kind(values)}; allowed: a table")
        self._values = dict(values)
        self._asked: set[str] = set()
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self) -> list[str]:
        """Return all keys, for a table whose keys are names."""
        self._asked.update(self._values)
        return list(self._values)

    def done(self) -> None:
        """Refuse keys that were not asked for."""
        for key in self._values:
            if key not in self._asked:
                raise ConfigError(f"{self.where} has {key!r}; allowed: {', '.join(sorted(self._asked))}")

    def table(self, key: str) -> Fields:
        """Return a table within; an empty one if it is not there."""
        return Fields(self._take(key, {}), f"{self.where}: {key}")

    def tables(self, key: str) -> list[Fields]:
        """Return a list of tables within."""
        return [Fields(value, f"{self.where}: {key} {n}") for n, value in enumerate(self._list(key), start=1)]

    def named(self, key: str) -> list[Fields]:
        """Return a list of tables within, in which a bare name stands for the table ``{host = name}``."""
        values = [{"host": value} if isinstance(value, str) else value for value in self._list(key)]
        return [Fields(value, f"{self.where}: {key} {n}") for n, value in enumerate(values, start=1)]

    def text(self, key: str, default: str | None = None) -> str:
        """Return text; without a default it must be there."""
        found = self._take(key, default)
        if not isinstance(found, str):
            raise self._refused(key, found, "text")
        return found

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        found = self._list(key)
        for value in found:
            if not isinstance(value, str):
                raise self._refused(key, value, "a list of texts")
        return [str(value) for value in found]

    def names(self, one: str, several: str) -> list[str]:
        """Return the names that either key gives."""
        names = [*filter(None, [self.text(one, "")]), *self.texts(several)]
        if not names:
            raise ConfigError(f"{self.where} has neither {one} nor {several}; give a name, or a list of names")
        return names

    def whole(self, key: str, default: int | None = None, least: int = 0) -> int:
        """Return a whole number of at least ``least``."""
        found = self._take(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise self._refused(key, found, f"a whole number of {least} or more")
        return found

    def whole_or_none(self, key: str) -> int | None:
        """Return a whole number of at least 0, or None if it is not there."""
        self._asked.add(key)
        return self.whole(key) if key in self else None

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        found = self._take(key, default)
        if not isinstance(found, bool):
            raise self._refused(key, found, "true or false")
        return found

    def number(self, key: str, default: float | None = None, most: float = math.inf) -> float:
        """Return a number from 0 to ``most``."""
        found = self._take(key, default)
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= most:
            raise self._refused(
                key, found, "a number of 0 or more" if math.isinf(most) else f"a number from 0 to {most}"
            )
        return float(found)

    def time_ns(self, key: str, default: float | None = 0.0) -> int:
        """Return a time given in ms."""
        return round(self.number(key, default, most=1e12) * 1e6)

    def rate_bps(self, key: str, default: str | None = None) -> int:
        """Return a rate, as 800M or 2.5G."""
        return parse_rate(self._quantity(key, default, 'a rate, as "800M" or "2.5G"'))

    def size_bytes(self, key: str, default: str | None = None) -> int:
        """Return a size, as 25M or 2Gi."""
        return parse_size(self._quantity(key, default, 'a size, as "25M" or "2Gi"'))

    def choice(self, key: str, default: _Choice, allowed: Iterable[_Choice] | None = None) -> _Choice:
        """Return a member of an enum, given by its name in lower case with dashes; any unless told which."""
        members = type(default) if allowed is None else list(allowed)
        return _member(members, self.text(key, _name(default)), f"{self.where}: {key}")

    def choices(self, key: str, allowed: Iterable[_Choice]) -> list[_Choice]:
        """Return some of these members of an enum; all if the key is not there."""
        members = list(allowed)
        if key not in self:
            self._asked.add(key)
            return members
        return [_member(members, text, f"{self.where}: {key}") for text in self.texts(key)]

    def _take(self, key: str, default: object = None) -> object:
        self._asked.add(key)
        found = self._values.get(key, _MISSING)
        if found is _MISSING:
            if default is None:
                raise ConfigError(f"{self.where} has no {key}; it must be given")
            return default
        return found

    def _list(self, key: str) -> list[object]:
        found = self._take(key, [])
        if not isinstance(found, list):
            raise self._refused(key, found, "a list")
        return found

    def _quantity(self, key: str, default: str | None, allowed: str) -> str:
        found = self._take(key, default)
        if not isinstance(found, str | int) or isinstance(found, bool):
            raise self._refused(key, found, allowed)
        return str(found)

    def _refused(self, key: str, found: object, allowed: str) -> ConfigError:
        return ConfigError(f"{self.where}: {key} = {found!r}; allowed: {allowed}")


def _member(members: Iterable[_Choice], text: str, where: str) -> _Choice:
    found = {_name(member): member for member in members}
    if text not in found:
        raise ConfigError(f"{where} = {text!r}; allowed: {', '.join(found)}")
    return found[text]


def _name(member: Enum) -> str:
    return member.name.lower().replace("_", "-")


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else repr(value)
