"""Quantities as people write them (``80GiB``, ``36h``, ``4Mi tokens``, ``$120``, ``5%``, ``400 Gbit/s``), and back.

The only place where such text is read. GB and GiB stay apart, whole numbers stay exact, and a bare number is refused:
its unit would be a guess. Every ``format_x`` writes what ``parse_x`` reads back to the same value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

LIMIT = 2**63
"""Every quantity is below this, so that it fits any store's integer and any exact float product."""

_MAX_TEXT = 80
_NUMBER = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_SHAPE = re.compile(rf"(?P<sign>[+-]?)\s*(?P<number>{_NUMBER})\s*(?P<unit>[^\d\s.+-].*)?")

_DECIMAL = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5}
_PREFIX: dict[str, int] = {name: 1000**power for name, power in _DECIMAL.items()} | {
    name: 1024**power for name, power in _BINARY.items()
}

_BYTES = {f"{prefix}B": Fraction(factor) for prefix, factor in _PREFIX.items()} | {"KB": Fraction(1000)}
_SECONDS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
    "w": Fraction(604800),
}
_COUNT = _PREFIX | {"K": 1000, "B": 1000**3}
_TOKENS = {f"{prefix} {word}".strip(): Fraction(n) for prefix, n in _COUNT.items() for word in ("tokens", "token")}
_SEQUENCES = {
    f"{prefix} {word}".strip(): Fraction(n) for prefix, n in _COUNT.items() for word in ("sequences", "sequence")
}
_USD = {"USD": Fraction(1)}
_PERCENT = {"%": Fraction(1, 100)}
_RATES = {f"{unit}/s": factor for unit, factor in _BYTES.items()} | {
    f"{prefix}bit/s": Fraction(factor, 8) for prefix, factor in _PREFIX.items()
}


class QuantityError(ValueError):
    """The text is not a quantity of the wanted kind. The message is a hint that says how to write one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    name: str
    units: Mapping[str, Fraction]
    examples: str


_BYTES_KIND = _Kind(name="a size in bytes", units=_BYTES, examples="80GB (10^9 bytes) or 80GiB (2^30 bytes)")
_SECONDS_KIND = _Kind(name="a duration", units=_SECONDS, examples="90s, 10min, 36h, 2d or 1h30min")
_TOKENS_KIND = _Kind(name="a number of tokens", units=_TOKENS, examples="2048 tokens, 4Mi tokens or 15T tokens")
_SEQUENCES_KIND = _Kind(name="a number of sequences", units=_SEQUENCES, examples="512 sequences")
_USD_KIND = _Kind(name="an amount of US dollars", units=_USD, examples="$120 or 120 USD")
_RATIO_KIND = _Kind(name="a ratio", units=_PERCENT, examples="5%")
_RATE_KIND = _Kind(name="a rate of data", units=_RATES, examples="400 Gbit/s, 50 GB/s or 3.35 TB/s")


def parse_bytes(value: object) -> int:
    """Read ``80GB``, ``80GiB``, ``512 B``. Raises :class:`QuantityError` unless it is a whole number of bytes."""
    return _whole(value, _BYTES_KIND, "bytes")


def parse_duration_s(value: object) -> float:
    """Read ``90s``, ``10min``, ``36h``, ``1h30min`` to seconds. Raises :class:`QuantityError`."""
    if isinstance(value, str) and len(value) <= _MAX_TEXT:
        parts = re.findall(rf"{_NUMBER}\s*[a-z]+", value.strip())
        if len(parts) > 1 and "".join(parts) == re.sub(r"\s+(?=[\d.])", "", value.strip()):
            return _real(sum((_read(part, _SECONDS_KIND) for part in parts), Fraction(0)), value)
    return _real(_read(value, _SECONDS_KIND), value)


def parse_tokens(value: object) -> int:
    """Read ``4M tokens`` (10^6), ``4Mi tokens`` (2^20), ``15B tokens`` (10^9). Raises :class:`QuantityError`."""
    return _whole(value, _TOKENS_KIND, "tokens")


def parse_sequences(value: object) -> int:
    """Read ``512 sequences``. Raises :class:`QuantityError`."""
    return _whole(value, _SEQUENCES_KIND, "sequences")


def parse_usd(value: object) -> float:
    """Read ``$120`` or ``120 USD``. Raises :class:`QuantityError`."""
    if isinstance(value, str) and value.strip().startswith("$"):
        rest = value.strip()[1:].strip()
        if re.fullmatch(r"[\d.+-].*?(?<!USD)", rest):
            return _real(_read(f"{rest} USD", _USD_KIND), value)
    return _real(_read(value, _USD_KIND), value)


def parse_ratio(value: object) -> float:
    """Read ``5%`` to 0.05; from 0% to 100%. Raises :class:`QuantityError`."""
    ratio = _read(value, _RATIO_KIND)
    if ratio > 1:
        raise QuantityError("is more than 100%")
    return float(ratio)


def parse_bytes_per_s(value: object) -> float:
    """Read ``400 Gbit/s`` (bits: a B is a byte), ``3.35 TB/s``, ``12 GiB/s``. Raises :class:`QuantityError`."""
    return _real(_read(value, _RATE_KIND), value)


def format_bytes(num_bytes: int) -> str:
    """Write bytes in the largest unit that keeps them a whole number: ``80GiB``, ``80GB``, ``1500B``."""
    number, prefix = _split(num_bytes)
    return f"{number}{prefix}B"


def format_duration_s(duration_s: float) -> str:
    """Write seconds in the largest unit that keeps them whole, else as seconds: ``36h``, ``90s``, ``1.5s``."""
    for unit in ("d", "h", "min"):
        count, rest = divmod(duration_s, float(_SECONDS[unit]))
        if duration_s and not rest and count < 1e6:
            return f"{int(count)}{unit}"
    return f"{_plain(Decimal(repr(float(duration_s))))}s"


def format_tokens(num_tokens: int) -> str:
    """Write a number of tokens: ``4Mi tokens``, ``15T tokens``, ``2050 tokens``."""
    number, prefix = _split(num_tokens)
    return f"{number}{prefix} tokens"


def format_sequences(num_sequences: int) -> str:
    """Write a number of sequences, always in full: ``1024 sequences``."""
    return "1 sequence" if num_sequences == 1 else f"{num_sequences} sequences"


def format_usd(amount_usd: float) -> str:
    """Write US dollars: ``120 USD``."""
    return f"{_plain(Decimal(repr(float(amount_usd))))} USD"


def format_ratio(ratio: float) -> str:
    """Write a ratio in percent: ``5%``."""
    with localcontext(prec=60):
        return f"{_plain(Decimal(repr(float(ratio))) * 100)}%"


def format_bytes_per_s(rate_bytes_per_s: float) -> str:
    """Write a rate with a decimal prefix: ``3.35 TB/s``."""
    rate = Decimal(repr(float(rate_bytes_per_s)))
    with localcontext(prec=60):
        for prefix in ("P", "T", "G", "M", "k"):
            scale = Decimal(_PREFIX[prefix])
            if rate >= scale:
                return f"{_plain(rate / scale)} {prefix}B/s"
    return f"{_plain(rate)} B/s"


def pattern(units: str) -> str:
    """Return a regular expression for editors: a number, then ``units``. ``parse_x`` has the last word."""
    return rf"^\s*{_NUMBER}\s*{units}\s*$"


def _read(value: object, kind: _Kind) -> Fraction:
    """Return the exact value in the kind's base unit."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise QuantityError(f"is a bare number; {kind.name} needs its unit: write {kind.examples}")
    if not isinstance(value, str):
        raise QuantityError(f"must be {kind.name}, written like {kind.examples}")
    text = value.strip()
    match = _SHAPE.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise QuantityError(f"is not {kind.name}; write {kind.examples}")
    if match["sign"] == "-":
        raise QuantityError(f"is negative; write {kind.name} such as {kind.examples}")
    if match["unit"] is None:
        raise QuantityError(f"is a bare number; {kind.name} needs its unit: write {kind.examples}")
    amount = Fraction(match["number"]) * _factor(match["unit"], kind)
    if amount >= LIMIT:
        raise QuantityError(f"is too large: {kind.name} must stay below 2^63")
    return amount


def _factor(written: str, kind: _Kind) -> Fraction:
    unit = re.sub(r"\s+", " ", written.strip())
    spaced = re.sub(r"^([kKMGTPB]i?)(?=(tokens?|sequences?)$)", r"\1 ", unit)
    found = kind.units.get(spaced)
    if found is not None:
        return found
    by_case = {known.lower(): known for known in reversed(list(kind.units))}
    near = by_case.get(spaced.lower()) or next(
        iter(difflib.get_close_matches(spaced, kind.units, n=1, cutoff=0.5)), None
    )
    guess = f" (did you mean {near!r}?)" if near else ""
    raise QuantityError(f"has the unknown unit {unit!r}{guess}; write {kind.name} like {kind.examples}")


def _whole(value: object, kind: _Kind, noun: str) -> int:
    amount = _read(value, kind)
    if amount.denominator != 1:
        raise QuantityError(f"is not a whole number of {noun}; the nearest is {round(amount)}")
    return amount.numerator


def _real(amount: Fraction, value: object) -> float:
    if amount >= LIMIT:
        raise QuantityError(f"is too large: {value!r} is not below 2^63")
    return float(amount)


def _split(amount: int) -> tuple[int, str]:
    """Return the (number, prefix) pair whose product is exactly ``amount`` and whose text is shortest."""
    fits = [(amount // size, prefix) for prefix, size in _PREFIX.items() if amount and amount % size == 0]
    return min(fits, key=lambda pair: (len(f"{pair[0]}{pair[1]}"), pair), default=(amount, ""))


def _plain(number: Decimal) -> str:
    """Write a decimal without needless zeros, and without a long tail of them."""
    if not number:
        return "0"
    with localcontext(prec=60):
        reduced = number.normalize()
    return f"{reduced:f}" if -7 <= reduced.adjusted() < 19 else str(reduced)
