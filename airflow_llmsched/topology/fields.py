"""JSON objects of somebody else, asked for fields by kind: what has another kind is refused with object and field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_llmsched import codec
from airflow_llmsched.errors import DataError
from airflow_llmsched.topology.reading import bounded, quoted, refusal


def parse_json(text: str, *, source: str) -> Any:
    """Return what ``text`` says. Raises ``DataError`` with the line."""
    try:
        return codec.parse_json(bounded(text, source=source))
    except json.JSONDecodeError as error:
        where = f"{source}: line {error.lineno}"
        raise refusal(where, f"is no JSON: {error.msg}", hint="Was it cut off?") from error
    except ValueError as error:
        raise refusal(source, f"is no JSON that can be read: {str(error)[:200]}", hint="Write it anew") from error


class Fields:
    """One object. ``where`` names it in errors."""

    def __init__(self, value: object, where: str) -> None:
        """Raises ``DataError`` unless ``value`` is an object."""
        if not isinstance(value, Mapping):
            raise refusal(where, f"is {_kind(value)} and not an object", hint="Write out the source anew")
        self.where = where
        self._value: Mapping[str, Any] = value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text, or a number as one; ``default`` where there is none. Raises ``DataError``."""
        value = self._value.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self.error(name, f"is {_kind(value)} and not text")
        try:
            return str(value)
        except ValueError:  # more digits than Python writes
            raise self.error(name, "is far too large a number") from None

    def whole(self, name: str) -> int:
        """Return a whole number from 0 to 10^9. Raises ``DataError``."""
        value = self._value.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
            raise self.error(name, "must be a whole number from 0 to 10^9")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a field is true; one that is missing is not. Raises ``DataError``."""
        value = self._value.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"is {_kind(value)} and neither true nor false")
        return bool(value)

    def child(self, name: str) -> Fields:
        """Return an object, an empty one where there is none. Raises ``DataError``."""
        value = self._value.get(name)
        return Fields({} if value is None else value, f"{self.where}: {name}")

    def children(self, name: str) -> list[Fields]:
        """Return a list of objects, an empty one where there is none. Raises ``DataError``."""
        return [Fields(each, f"{self.where}: {name}[{index}]") for index, each in enumerate(self._list(name))]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, an empty one where there is none. Raises ``DataError``."""
        found = self._list(name)
        if not all(isinstance(each, str) for each in found):
            raise self.error(name, "must be a list of texts")
        return tuple(found)

    def table(self, name: str) -> dict[str, str]:
        """Return texts by name, none where there is no such field. Raises ``DataError``."""
        inner = self.child(name)
        return {key: inner.text(key, "") for key in inner.names}

    def table_of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the texts of these fields, as far as there are any. Raises ``DataError``."""
        return {name: self.text(name) for name in names if self._value.get(name) is not None}

    def called(self, where: str) -> Fields:
        """Return the same object under a better name for errors."""
        return Fields(self._value, where)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields that there are."""
        return tuple(map(str, self._value))

    def error(self, name: str, what: str, *, hint: str = "Write out the source anew") -> DataError:
        """Return the error of a field."""
        return refusal(f"{self.where}: {name}", what, hint=hint)

    def _list(self, name: str) -> Sequence[Any]:
        value = self._value.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.error(name, f"is {_kind(value)} and not a list")
        return value


def named(kind: str, name: str) -> str:
    """Return how errors name an object."""
    return f"{kind} {quoted(name)}"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "missing" if value is None else names.get(type(value), "something else")
