"""Typed access to one file's keys, which remembers which were placed, so that what is left over can be named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from airflow_llmsched.errors import SpecError
from airflow_llmsched.specs.hf_config.neutral import is_neutral

_LARGEST = 2**31


class Keys:
    """The keys of one JSON object. A key that is absent takes the default, one that is null is None.

    Every reading method counts the key as placed and raises ``SpecError`` for a value of another type.
    """

    def __init__(self, config: Mapping[str, Any], *, file: str, path: str = "") -> None:
        self._config = config
        self._file = file
        self._path = path
        self._placed: set[str] = set()
        self._nested: list[Keys] = []

    def __contains__(self, key: object) -> bool:
        return key in self._config

    def size(self, key: str, default: int | None = None) -> int | None:
        """A whole number of at least 1."""
        value = self._take(key, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
            self.refuse(key, "must be a whole number of at least 1")
        return value

    def count(self, key: str, default: int = 0) -> int:
        """A whole number of at least 0; null counts as the default."""
        value = self._take(key, default)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
            self.refuse(key, "must be a whole number of at least 0")
        return value

    def need(self, key: str) -> int:
        """A whole number of at least 1 that has no default."""
        value = self.size(key)
        if value is None:
            self.refuse(key, "is missing; the shape cannot be known without it")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null counts as the default."""
        value = self._take(key, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def word(self, key: str, default: str | None = None) -> str | None:
        """A text."""
        value = self._take(key, default)
        if value is not None and not isinstance(value, str):
            self.refuse(key, "must be text")
        return value

    def words(self, key: str, *, length: int) -> Sequence[str] | None:
        """A list of as many texts as there are layers."""
        value = self._take(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value) or len(value) != length:
            self.refuse(key, f"must be a list of {length} words, one for each layer")
        return value

    def numbers(self, key: str, *, below: int) -> tuple[int, ...] | None:
        """A list of whole numbers from 0 to less than ``below``, sorted and each once."""
        value = self._take(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(_is_number(each) and 0 <= each < below for each in value):
            self.refuse(key, f"must be a list of whole numbers from 0 to {below - 1}")
        return tuple(sorted(set(value)))

    def bits(self, key: str, *, length: int) -> Sequence[bool] | None:
        """A list of zeros and ones, one for each layer."""
        value = self._take(key, None)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(_is_number(each) and each in {0, 1} for each in value):
            self.refuse(key, "must be a list of zeros and ones")
        if len(value) != length:
            self.refuse(key, f"must have {length} entries, one for each layer")
        return [bool(each) for each in value]

    def raw(self, key: str) -> Any:
        """Whatever the file has there, or None."""
        return self._take(key, None)

    def nested(self, key: str) -> Keys:
        """The keys of an object within this one; an absent one has none."""
        value = self._take(key, {})
        if not isinstance(value, Mapping):
            self.refuse(key, "must be an object")
        self._nested.append(Keys(value, file=self._file, path=f"{self._path}{key}."))
        return self._nested[-1]

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse any value but those: others would change the model in a way that no shape can say.

        A list with one entry allows that entry once for each layer.
        """
        value = self._take(key, None)
        if isinstance(value, list) and value:
            value = value[:1] if all(each == value[0] for each in value) else value
        if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
            modelled = f"only {allowed[0]!r} is" if allowed else "take it out"
            self.refuse(key, f"changes the model in a way that is not modelled; {modelled}")

    def ignore(self, *keys: str) -> None:
        """Count keys as placed which have no effect, given the others."""
        self._placed.update(keys)

    def refuse(self, key: str, hint: str) -> NoReturn:
        """Raise ``SpecError`` for a key."""
        raise SpecError(path=self._path + key, value=self._config.get(key), hint=hint, file=self._file)

    def require_all_placed(self) -> None:
        """Raise ``SpecError`` that names every key left over."""
        unplaced = self.left_over()
        if unplaced:
            refuse_unplaced(unplaced, file=self._file)

    def left_over(self) -> Sequence[str]:
        """Return keys that were not placed and are not known to be neutral, by their path, sorted; nested ones too."""
        own = [
            self._path + key
            for key, value in self._config.items()
            if key not in self._placed and not is_neutral(key, value)
        ]
        return sorted(own + [key for nested in self._nested for key in nested.left_over()])

    def _take(self, key: str, default: Any) -> Any:
        self._placed.add(key)
        return self._config.get(key, default)


def refuse_unplaced(paths: Sequence[str], *, file: str) -> NoReturn:
    """Raise ``SpecError`` that names keys for which there is no place."""
    hint = (
        f"could not place {', '.join(map(repr, paths))}: take out what changes neither shape nor work, "
        "or give model.shape instead"
    )
    raise SpecError(path=paths[0], hint=hint, file=file)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
