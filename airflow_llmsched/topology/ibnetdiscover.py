"""What ``ibnetdiscover`` prints: every switch and card of an InfiniBand fabric, and where each port leads. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_llmsched.topology.cabling import Cabling, Device, lanes_rate
from airflow_llmsched.topology.fabric_levels import network_of
from airflow_llmsched.topology.reading import Machines, Oddities, Reading, bounded, hung, refusal

_SOURCE = "ibnetdiscover"
_HEAD = re.compile(r'(Switch|Ca|Rt)\s+[0-9]+\s+"([SHR])-([0-9a-f]{1,16})"\s*(?:#\s*(.*))?')
_PORT = re.compile(
    r'\[([0-9]+)\](?:\[ext [0-9]+\])?(?:\([0-9a-f]+\))?\s+"([SHR])-([0-9a-f]{1,16})"\[([0-9]+)\](?:\[ext [0-9]+\])?'
    r"(?:\([0-9a-f]+\))?\s*(?:#\s*(.*))?"
)
_RATE = re.compile(r"([0-9]{1,2}x)([A-Z]{3}(?:10)?)(?:\s|$)")
_DESCRIPTION = re.compile(r'"(.*)"')
_SYSTEM = re.compile(r"sysimgguid=0x([0-9a-f]{1,16})")
_PLAIN = re.compile(r"\s*(?:#.*)?|(?:vendid|devid|switchguid|caguid|rtguid)=.*|(?:Chassis|Non-Chassis|Spine|Line) .*")


@dataclass(slots=True)
class _Block:
    """The device whose ports are being told, and the box that the next device is in."""

    guid: str = ""
    is_switch: bool = False
    system: str = ""


def read_ibnetdiscover(text: str, *, machines: Machines | None = None) -> Reading:
    """Return the tree of the hosts, all free; ``machines`` says what they are. Raises ``DataError`` with the line."""
    odd = Oddities()
    cabling = Cabling(_SOURCE, odd)
    block = _Block()
    for number, line in enumerate(map(str.strip, bounded(text, source=_SOURCE).splitlines()), start=1):
        where = f"{_SOURCE}: line {number}"
        if head := _HEAD.fullmatch(line):
            _begin(block, head, cabling, where)
        elif port := _PORT.fullmatch(line):
            if not block.guid:
                raise refusal(where, "tells a port of no device", hint="Was the beginning cut off?")
            _join(block, port, cabling, where)
        elif system := _SYSTEM.match(line):
            block.system = system[1].zfill(16)
        elif not _PLAIN.fullmatch(line):
            odd.note("line that is not understood")
    known = machines or Machines()
    return Reading(tree=hung(network_of(cabling, num_slots=known.slots), known), warnings=odd.counted())


def _begin(block: _Block, head: re.Match[str], cabling: Cabling, where: str) -> None:
    kind, letter, guid, comment = head.groups()
    if letter != {"Switch": "S", "Ca": "H", "Rt": "R"}[kind]:
        raise refusal(where, f"calls {kind} what is {letter}-{guid}", hint="Discover the fabric anew")
    block.guid, block.is_switch = guid.zfill(16), kind == "Switch"
    told = _DESCRIPTION.search(comment or "")
    device = Device(
        guid=block.guid,
        name=told[1].strip() if told else "",
        is_switch=block.is_switch,
        system=block.system or block.guid,
    )
    block.system = ""
    if kind == "Rt":
        cabling.odd.note("router, which is passed over")
        return
    cabling.add_device(device, where)


def _join(block: _Block, port: re.Match[str], cabling: Cabling, where: str) -> None:
    near, letter, guid, far, comment = port.groups()
    if letter == "R":
        return
    other = guid.zfill(16)
    rates = _RATE.findall(comment or "")
    rate = lanes_rate(*rates[-1]) if rates else None
    cabling.odd.note("port of which no rate is told", rate is None)
    told = _DESCRIPTION.search(comment or "")
    if other not in cabling.devices:  # whose own block may come later, or was cut off
        name = told[1].strip() if told else ""
        cabling.add_device(Device(guid=other, name=name, is_switch=letter == "S", system=other), where)
    elif cabling.devices[other].is_switch is not (letter == "S"):
        raise refusal(where, f"{other} is a switch and a card", hint="Discover the fabric anew")
    cabling.add_cable((block.guid, str(int(near[:9]))), (other, str(int(far[:9]))), rate, where)
