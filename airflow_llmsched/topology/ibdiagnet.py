"""Files that ``ibdiagnet`` writes of an InfiniBand fabric: ``ibdiagnet2.lst`` and ``ibdiagnet2.net_dump``. Pure.

The first has a line for each cable; the second a block for each switch with a row for each port. ``ibdiagnet2
.ibnetdiscover``, which newer versions write as well, is for ``ibnetdiscover``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from airflow_llmsched.topology.cabling import Cabling, Device, lanes_rate
from airflow_llmsched.topology.fabric_levels import network_of
from airflow_llmsched.topology.reading import Machines, Oddities, Reading, bounded, hung, refusal

_SOURCE = "ibdiagnet"
_END = (
    r"\{\s*(CA|SW|RT)\s+Ports:\w+\s+SystemGUID:([0-9A-Fa-f]{1,16})\s+NodeGUID:([0-9A-Fa-f]{1,16})\s+PortGUID:\w+"
    r"\s+VenID:\w+\s+DevID:\w+\s+Rev:\w+\s+(?:\{(.*?)\}\s*)?LID:\w+\s+PN:([0-9A-Fa-f]{1,4})\s*\}"
)
_CABLE = re.compile(rf"{_END}\s+{_END}\s+PHY=(\S+)\s+LOG=(\S+)(?:\s+SPD=(\S+))?\s*")
_SWITCH = re.compile(r'"(.*)",\s*[^,]*,\s*0x([0-9A-Fa-f]{1,16}),\s*LID\s+\w+.*')
_ACTIVE = frozenset(("ACT", "ACTIVE"))
_DOWN = "port or cable that is not active"
_STRANGE = "line that is not understood"

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "port": ("#",),
    "state": ("Sta",),
    "width": ("LWA",),
    "speed": ("LSA",),
    "guid": ("Neighbor Guid", "Neighbor GUID"),
    "far_port": ("N#",),
    "name": ("Neighbor Description", "Neighbor Desc"),
}
"""What of a row is needed, by the names that versions have for the columns."""


def read_ibdiagnet(text: str, *, machines: Machines | None = None) -> Reading:
    """Return the tree of the hosts, all free; ``machines`` says what they are. Raises ``DataError`` with the line."""
    odd = Oddities()
    cabling = Cabling(_SOURCE, odd)
    lines = [
        (f"{_SOURCE}: line {number}", line.strip())
        for number, line in enumerate(bounded(text, source=_SOURCE).splitlines(), start=1)
    ]
    told = [(where, line) for where, line in lines if line and not line.startswith("# ")]
    if any(line.startswith("{") for _, line in told[:100]):
        _read_list(told, cabling)
    else:
        _read_dump([(where, line) for where, line in lines if line], cabling)
    known = machines or Machines()
    return Reading(tree=hung(network_of(cabling, num_slots=known.slots), known), warnings=odd.counted())


def _read_list(lines: Iterable[tuple[str, str]], cabling: Cabling) -> None:
    for where, line in lines:
        found = _CABLE.fullmatch(line)
        if found is None:
            cabling.odd.note(_STRANGE)
            continue
        parts = found.groups()
        width, state, speed = parts[10:]
        if state not in _ACTIVE or "RT" in {parts[0], parts[5]}:
            cabling.odd.note(_DOWN if state not in _ACTIVE else "router, which is passed over")
            continue
        ends = [_end(each, cabling, where) for each in (parts[:5], parts[5:10])]
        rate = lanes_rate(width, speed or "2.5")
        cabling.odd.note("port of which no rate is told", rate is None)
        cabling.add_cable(ends[0], ends[1], rate, where)


def _end(parts: Sequence[str | None], cabling: Cabling, where: str) -> tuple[str, str]:
    kind, system, guid, name, port = (part or "" for part in parts)
    device = Device(
        guid=guid.lower().zfill(16), name=name.strip(), is_switch=kind == "SW", system=system.lower().zfill(16)
    )
    cabling.add_device(device, where)
    return device.guid, str(int(port, 16))


def _read_dump(lines: Sequence[tuple[str, str]], cabling: Cabling) -> None:
    switches = {_guid(found[2]) for _, line in lines if (found := _SWITCH.fullmatch(line))}
    for switch, row, where in _rows(lines, cabling):
        if row["state"] not in _ACTIVE:
            cabling.odd.note(_DOWN)
            continue
        if not re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", row["guid"]):
            raise refusal(where, f"a port that is active leads to {row['guid'][:40]!r}", hint="Run ibdiagnet anew")
        other = _guid(row["guid"][2:])
        if other not in switches:
            name = row["name"].strip().strip('"').strip()
            cabling.add_device(Device(guid=other, name=name, is_switch=False, system=other), where)
        rate = lanes_rate(row["width"], row["speed"])
        cabling.odd.note("port of which no rate is told", rate is None)
        cabling.add_cable((switch, row["port"]), (other, row["far_port"]), rate, where)


def _rows(lines: Iterable[tuple[str, str]], cabling: Cabling) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield the rows of all switches with what stands in the columns that are needed."""
    switch = ""
    columns: dict[str, int] = {}
    num_columns = 0
    for where, line in lines:
        if found := _SWITCH.fullmatch(line):
            switch, columns = _guid(found[2]), {}
            device = Device(guid=switch, name=found[1].strip(), is_switch=True, system=switch)
            cabling.add_device(device, where)
        elif switch and not columns:
            names = [name.strip() for name in line.split(":")]
            columns = _places(names, where)
            num_columns = len(names)
        elif switch and line.count(":") >= num_columns - 1:
            cells = [cell.strip() for cell in line.split(":", num_columns - 1)]
            yield switch, {kind: cells[at] for kind, at in columns.items()}, where
        elif not line.startswith("#"):
            cabling.odd.note(_STRANGE)


def _places(names: Sequence[str], where: str) -> dict[str, int]:
    places = {}
    for kind, known in _COLUMNS.items():
        at = next((names.index(name) for name in known if name in names), None)
        if at is None:
            what = f"names no column {' or '.join(known)}"
            raise refusal(where, what, hint="Is it an ibdiagnet2.net_dump? Its .lst and .ibnetdiscover are read, too")
        places[kind] = at
    return places


def _guid(text: str) -> str:
    return text.lower().zfill(16)
