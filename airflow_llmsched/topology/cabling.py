"""A fabric as it was discovered: switches, cards, and the cables between their ports. Pure.

``ibnetdiscover`` and ``ibdiagnet`` fill it; ``fabric_levels`` makes levels of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from airflow_llmsched.topology.reading import MAX_NODES, Oddities, quoted, refusal

MAX_CABLES = 4_000_000

GBIT_PER_S_OF_LANE: Mapping[str, float] = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Of data, behind the line's own coding (InfiniBand Trade Association, roadmap; 8b/10b up to QDR, 64b/66b for FDR)."""

_LINE_RATES = {"2.5": "SDR", "5": "DDR", "10": "QDR", "14": "FDR", "14.0625": "FDR", "25": "EDR", "25.78125": "EDR"}
_LINE_RATES |= {"50": "HDR", "53.125": "HDR", "100": "NDR", "106.25": "NDR", "200": "XDR", "FDR10": "FDR10"}
"""Rates of a lane in Gbit/s as ``ibdiagnet`` writes them."""

_AGGREGATION = "Aggregation Node"
"""In the description of the port through which a switch adds up (SHARP). No host hangs there."""

_CARD = re.compile(
    r"(?:mlx[45]_|HCA-|hfi1_|qib|ibp|ibs|ibo|rocep|roceo|roces|irdma|bnxt_re|efa_|rdmap|ionic_|hns_|erdma_)[\w.-]*"
)
"""How hosts name their cards behind their own name."""

_NOBODY = frozenset(("localhost", "localhost.localdomain", "(none)"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A switch or a card. ``system`` is one for all chips of one box. ``name`` is as somebody described it."""

    guid: str
    name: str
    is_switch: bool
    system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """What joins two devices. ``bytes_per_s`` is one-way; None: nobody says."""

    ends: tuple[str, str]
    bytes_per_s: float | None


class Cabling:
    """Collects devices and cables as they are met, in whatever order, each from one end or both."""

    def __init__(self, source: str, odd: Oddities) -> None:
        self.source = source
        self.odd = odd
        self.devices: dict[str, Device] = {}
        self._cables: dict[frozenset[tuple[str, str]], tuple[float | None, str]] = {}
        self._other_end: dict[tuple[str, str], tuple[tuple[str, str], str]] = {}

    def add_device(self, device: Device, where: str) -> None:
        """Note a device. Raises ``DataError`` for one that is a switch and a card, or there are too many."""
        known = self.devices.setdefault(device.guid, device)
        if known.is_switch is not device.is_switch:
            raise refusal(where, f"{device.guid} is a switch and a card", hint="Discover the fabric anew")
        if known.name != device.name:
            if known.name and device.name:
                self.odd.note("device that was renamed during discovery")
            self.devices[device.guid] = max(known, device, key=lambda each: each.name)
        if len(self.devices) > MAX_NODES * 8:
            raise refusal(self.source, "describes too many devices", hint="Split it")

    def add_cable(self, one: tuple[str, str], other: tuple[str, str], bytes_per_s: float | None, where: str) -> None:
        """Note a cable between two ports, each of a device's GUID and a label.

        Raises ``DataError`` for a port that has two cables.
        """
        if one == other:
            raise refusal(where, f"port {one[1]} of {one[0]} is joined to itself", hint="Discover the fabric anew")
        for near, far in ((one, other), (other, one)):
            known, line = self._other_end.setdefault(near, (far, where))
            if known != far:
                there = line.rpartition(": ")[2]
                what = (
                    f"port {near[0]}[{near[1]}] leads to {far[0]}[{far[1]}], and to {known[0]}[{known[1]}] by {there}"
                )
                raise refusal(where, what, hint="Was a cable moved during discovery? Discover the fabric anew")
        key = frozenset((one, other))
        rate, _ = self._cables.get(key, (None, where))
        if rate is not None and bytes_per_s is not None and rate != bytes_per_s:
            self.odd.note("cable whose ends tell different rates: the lower one counts")
            bytes_per_s = min(rate, bytes_per_s)
        self._cables[key] = (rate if bytes_per_s is None else bytes_per_s, where)
        if len(self._cables) > MAX_CABLES:
            raise refusal(self.source, f"describes more than {MAX_CABLES} cables", hint="Split it")

    def cables(self) -> Iterator[Cable]:
        """Yield the cables whose ends are known devices."""
        for key, (rate, _) in self._cables.items():
            (one, _), (other, _) = sorted(key)
            if one in self.devices and other in self.devices:
                yield Cable(ends=(one, other), bytes_per_s=rate)

    def hosts(self) -> dict[str, str]:
        """Return the host of each card, by the card's GUID. Cards that name none are a host for each box.

        Raises ``DataError`` where two cards have one name: their hosts could not be told apart.
        """
        found: dict[str, str] = {}
        called: dict[str, str] = {}
        for guid, device in sorted(self.devices.items()):
            if device.is_switch or _AGGREGATION in device.name:
                continue
            name = _host_of(device.name)
            if name is None:
                self.odd.note("card that does not name its host")
                found[guid] = device.system
                continue
            if " " in device.name and device.name in called and called[device.name] != guid:
                what = f"cards {called[device.name]} and {guid} are both called {quoted(device.name)}"
                hint = "Two hosts have one name: give each its own and write it to node_desc of its cards"
                raise refusal(self.source, what, hint=hint)
            called[device.name] = guid
            found[guid] = name
        return found

    def switch_names(self) -> dict[str, str]:
        """Return a name for each switch: its description where no other has the same, else its GUID."""
        switches = {guid: each.name for guid, each in self.devices.items() if each.is_switch}
        counts = Counter(switches.values())
        return {guid: name if name and counts[name] == 1 else guid for guid, name in switches.items()}


def lanes_rate(width: str, speed: str) -> float | None:
    """Return one-way bytes/s of a link such as ``4x`` and ``HDR`` (or ``50``); None for words that are not known."""
    lanes = re.fullmatch(r"([0-9]{1,2})[xX]", width)
    lane = GBIT_PER_S_OF_LANE.get(_LINE_RATES.get(speed, speed))
    return None if lanes is None or lane is None else int(lanes[1]) * lane * 1e9 / 8


def _host_of(description: str) -> str | None:
    """Return the host in a card's description, such as ``node01 mlx5_0``; None where it holds the maker's name."""
    words = description.split()
    if not words or words[0] in _NOBODY:
        return None
    if len(words) == 1:
        return None if _CARD.fullmatch(words[0]) else words[0]
    return words[0] if len(words) == 2 and _CARD.fullmatch(words[1]) else None
