"""Links of a network's levels as plain values: how options of engines say what no cluster tells. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from airflow_llmsched.domain.topology import NetworkLevel
from airflow_llmsched.errors import SpecError

_KEYS = ("level", "bandwidth_bytes_per_s", "measured")


def links_of(plain: object, *, path: str = "network") -> tuple[NetworkLevel, ...]:
    """Return the links that ``plain`` lists, each with ``bandwidth_bytes_per_s`` and maybe ``level`` and ``measured``.

    They mean what they mean in ``NetworkLevel``; without ``level`` it is the network between all nodes. Raises
    ``SpecError`` naming the field.
    """
    if not isinstance(plain, (list, tuple)):
        raise SpecError(path=path, value=plain, hint='must be a list such as [{"bandwidth_bytes_per_s": 5e10}]')
    found: list[NetworkLevel] = []
    for index, each in enumerate(plain):
        link = each if isinstance(each, NetworkLevel) else _link(each, f"{path}[{index}]")
        if any(link.level == other.level for other in found):
            raise SpecError(path=f"{path}[{index}].level", value=link.level, hint="is told twice: keep one entry")
        found.append(link)
    return tuple(found)


def _link(each: object, path: str) -> NetworkLevel:
    if not isinstance(each, Mapping):
        raise SpecError(path=path, value=each, hint=f"must be a block with {', '.join(_KEYS)}")
    unknown = sorted(str(key) for key in each if key not in _KEYS)
    if unknown:
        raise SpecError(path=f"{path}.{unknown[0]}", hint=f"is not known; known: {', '.join(_KEYS)}")
    level, rate, measured = each.get("level"), each.get("bandwidth_bytes_per_s"), each.get("measured", False)
    if level is not None and not (isinstance(level, str) and level):
        raise SpecError(path=f"{path}.level", value=level, hint="must be the name of a level, or left out")
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
        hint = "must be a number above 0: one way, of each slot when all use it"
        raise SpecError(path=f"{path}.bandwidth_bytes_per_s", value=rate, hint=hint)
    if not isinstance(measured, bool):
        raise SpecError(path=f"{path}.measured", value=measured, hint="must be true or false")
    return NetworkLevel(level=level, bandwidth_bytes_per_s=float(rate), is_measured=measured)
