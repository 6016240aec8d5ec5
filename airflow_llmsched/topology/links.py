"""What a network has, as plain values: how options of engines say what no cluster tells. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from airflow_llmsched.domain.hardware import Transport
from airflow_llmsched.domain.topology import AS_SHAPES_SAY, NetworkFacts, NetworkLevel
from airflow_llmsched.errors import SpecError

_KEYS = ("level", "bandwidth_bytes_per_s", "measured")
_FACTS = ("rails", "transport", "traffic_class", "service_level")


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


def facts_of(plain: object, *, path: str = "fabric") -> NetworkFacts:
    """Return what ``plain`` says of a network as a whole: its rails, who moves the bytes, classes of traffic.

    Fields mean what they mean in ``NetworkFacts`` and in a topology file; each may be left out. Raises ``SpecError``
    naming the field.
    """
    if isinstance(plain, NetworkFacts):
        return plain
    if not isinstance(plain, Mapping):
        raise SpecError(path=path, value=plain, hint=f"must be a block with {', '.join(_FACTS)}")
    unknown = sorted(str(key) for key in plain if key not in _FACTS)
    if unknown:
        raise SpecError(path=f"{path}.{unknown[0]}", hint=f"is not known; known: {', '.join(_FACTS)}")
    transport = plain.get("transport")
    if transport is not None and (not isinstance(transport, str) or transport not in set(Transport)):
        hint = f"must be one of {', '.join(Transport)}, or left out"
        raise SpecError(path=f"{path}.transport", value=transport, hint=hint)
    rails = _whole(plain, "rails", path, least=1, most=64)
    return NetworkFacts(
        num_rails=AS_SHAPES_SAY.num_rails if rails is None else rails,
        transport=None if transport is None else Transport(transport),
        traffic_class=_whole(plain, "traffic_class", path, least=0, most=255),
        service_level=_whole(plain, "service_level", path, least=0, most=15),
    )


def _whole(plain: Mapping[str, object], name: str, path: str, *, least: int, most: int) -> int | None:
    value = plain.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecError(path=f"{path}.{name}", value=value, hint=f"must be a whole number from {least} to {most}")
    return value


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
