"""The matrix that ``nvidia-smi topo -m`` (or ``-mp``) prints: what joins the GPUs and network cards of one node. Pure.

Forms from driver 418 to 580 are read: cards under their own names (``mlx5_0``) or as ``NIC0`` with a legend below;
columns ``CPU Affinity``, ``NUMA Affinity`` and ``GPU NUMA ID`` as far as they are there; cells apart by tabs or blanks;
with or without the escapes that underline the header, and with a comment's sign in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_llmsched.domain.node_topology import DeviceLink, GpuPlace, NodeTopology, Path
from airflow_llmsched.topology.reading import Oddities, bounded, quoted, refusal

_SOURCE = "nvidia-smi topo"
MAX_DEVICES = 512
_MAX_TEXT = 1024 * 1024
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU([0-9]{1,3})")
_NIC = re.compile(r"NIC([0-9]{1,3})")
_LINK = re.compile(r"NV([0-9]{1,3})")
_LEGEND = re.compile(r"\s*#?\s*(NIC[0-9]{1,3}):\s*(\S+)\s*")
_CPUS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
_AFFINITY = re.compile(r"\s(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)")
_NO_LINK = frozenset(("X", "N/A", "DIS", "U"))
"""Cells that join nothing: the device itself, and pairs that the driver cannot or does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """What joins a node's devices, and how often which oddity was met on the way."""

    node: NodeTopology
    warnings: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    cells: tuple[str, ...]
    rest: tuple[str, ...]
    where: str


def read_nvidia_smi(text: str) -> NodeReading:
    """Return the node that the matrix is of. Raises ``DataError`` with the line of a contradiction."""
    if len(text) > _MAX_TEXT:
        raise refusal(_SOURCE, f"is {len(text)} characters long", hint="Hand over the output of one node")
    lines = [_ESCAPE.sub("", line).lstrip("#").rstrip() for line in bounded(text, source=_SOURCE).splitlines()]
    odd = Oddities()
    at, columns = _header(lines)
    names = {found[1]: found[2] for line in lines if (found := _LEGEND.fullmatch(line))}
    rows = list(_rows(lines, at, columns))
    nics = [name for name in columns if not _GPU.fullmatch(name)]
    odd.note("card of which the legend does not say the name", sum(_is_unnamed(nic, names) for nic in nics))
    called = {nic: names.get(nic, nic) for nic in nics}
    if len(set(called.values())) < len(called):
        raise refusal(_SOURCE, "the legend gives two cards one name", hint="Mend the legend")
    links = _links(rows, columns, odd)
    _check_rows(rows, columns, odd)
    return NodeReading(
        node=NodeTopology(
            gpus=tuple(sorted((_gpu(row, odd) for row in rows if _GPU.fullmatch(row.name)), key=lambda gpu: gpu.index)),
            nics=tuple(called.values()),
            gpu_links=_between_gpus(links),
            nic_links=_to_nics(links, called),
        ),
        warnings=odd.counted(),
    )


def _header(lines: Sequence[str]) -> tuple[int, list[str]]:
    """Return the line of the column names, and the names of the devices among them."""
    found = [(at, columns) for at, line in enumerate(lines) if (columns := _column_names(line))]
    if not found:
        hint = "Print it with nvidia-smi topo -m"
        raise refusal(_SOURCE, "has no line of column names that begins with GPU0", hint=hint)
    at, columns = found[0]
    if len(found) > 1:
        where = f"{_SOURCE}: line {found[1][0] + 1}"
        raise refusal(where, "begins a second matrix", hint="Hand over the output of one node")
    if len(columns) > MAX_DEVICES or len(set(columns)) < len(columns):
        raise refusal(f"{_SOURCE}: line {at + 1}", "names a device twice, or far too many", hint="Print it anew")
    return at, columns


def _column_names(line: str) -> list[str]:
    """Return the devices that a header names; none for any other line."""
    columns = _AFFINITY.split(f" {line}", maxsplit=1)[0].split()
    is_header = bool(columns) and bool(_GPU.fullmatch(columns[0])) and not any(map(_is_cell, columns[1:2]))
    return columns if is_header else []


def _is_cell(word: str) -> bool:
    return word in _NO_LINK or _LINK.fullmatch(word) is not None or word in set(Path)


def _rows(lines: Sequence[str], at: int, columns: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows of the matrix: those behind the header that begin with the name of a column."""
    seen: dict[str, int] = {}
    for number, line in enumerate(lines[at + 1 :], start=at + 2):
        words = line.split()
        if not words or words[0] not in columns:
            if words and words[0].rstrip(":") in {"Legend", "NIC"}:
                return
            continue
        name, where = words[0], f"{_SOURCE}: line {number}"
        if name in seen:
            raise refusal(where, f"{name} has a row on line {seen[name]} as well", hint="Hand over one node's output")
        seen[name] = number
        cells = tuple(words[1 : len(columns) + 1])
        if len(cells) < len(columns):
            what = f"{name} has {len(cells)} cells, and there are {len(columns)} columns"
            raise refusal(where, what, hint="Was it cut off? Print it anew")
        yield _Row(name, cells, _rest(line, len(columns)), where)


def _rest(line: str, num_columns: int) -> tuple[str, ...]:
    """Return what stands behind the matrix. Empty cells between tabs count; where blanks part cells there are none."""
    parts = [part.strip() for part in line.strip().split("\t")]
    if len(parts) > num_columns + 1:
        return tuple(parts[num_columns + 1 :])
    return tuple(line.split()[num_columns + 1 :])


def _links(rows: Sequence[_Row], columns: Sequence[str], odd: Oddities) -> dict[tuple[str, str], DeviceLink]:
    """Return what joins each two devices, in both directions alike."""
    found: dict[tuple[str, str], tuple[DeviceLink, str]] = {}
    for row in rows:
        for column, word in zip(columns, row.cells, strict=True):
            if (word == "X") is not (row.name == column):
                what = f"{quoted(word)} stands between {row.name} and {column}"
                raise refusal(row.where, what, hint="X is a device itself, and nothing else. Print it anew")
            link = _link(word, row, odd)
            if link is None:
                continue
            pair = (row.name, column) if row.name < column else (column, row.name)
            known, where = found.setdefault(pair, (link, row.where))
            if known != link:
                what = f"{word} joins {row.name} and {column}, and something else does on {where.rpartition(': ')[2]}"
                raise refusal(row.where, what, hint="Print it anew")
    return {pair: link for pair, (link, _) in found.items()}


def _link(word: str, row: _Row, odd: Oddities) -> DeviceLink | None:
    if word in _NO_LINK:
        odd.note("pair of devices of which nothing is told", word != "X")
        return None
    bonded = _LINK.fullmatch(word)
    if bonded is not None:
        return DeviceLink(path=Path.NVLINK, num_links=int(bonded[1]))
    if word not in set(Path) - {Path.NVLINK}:
        raise refusal(row.where, f"{quoted(word)} is no way between devices", hint="Print it with nvidia-smi topo -m")
    return DeviceLink(path=Path(word))


def _check_rows(rows: Sequence[_Row], columns: Sequence[str], odd: Oddities) -> None:
    missing = [name for name in columns if name not in {row.name for row in rows}]
    gpu = next((name for name in missing if _GPU.fullmatch(name)), None)
    if gpu is not None:
        raise refusal(_SOURCE, f"{gpu} has a column but no row", hint="Was it cut off? Print it anew")
    odd.note("card without a row", len(missing))


def _gpu(row: _Row, odd: Oddities) -> GpuPlace:
    said = list(row.rest)
    cpus = said.pop(0) if said else ""
    numa = said.pop(0) if said else ""
    if cpus and not _CPUS.fullmatch(cpus):
        odd.note("GPU whose processors are not told", cpus not in {"N/A", ""})
        cpus = ""
    odd.note("GPU without one NUMA node", bool(numa) and not re.fullmatch(r"[0-9]{1,4}", numa))
    return GpuPlace(
        index=int(row.name.removeprefix("GPU")),
        cpus=tuple(_range(part) for part in cpus.split(",") if part),
        numa_index=int(numa) if re.fullmatch(r"[0-9]{1,4}", numa) else None,
    )


def _range(part: str) -> tuple[int, int]:
    low, _, high = part.partition("-")
    return int(low), int(high or low)


def _is_unnamed(nic: str, names: Mapping[str, str]) -> bool:
    return _NIC.fullmatch(nic) is not None and nic not in names


def _between_gpus(links: Mapping[tuple[str, str], DeviceLink]) -> dict[int, dict[int, DeviceLink]]:
    found: dict[int, dict[int, DeviceLink]] = {}
    for (one, other), link in sorted(links.items(), key=lambda item: item[0]):
        first, second = _GPU.fullmatch(one), _GPU.fullmatch(other)
        if first and second:
            low, high = sorted((int(first[1]), int(second[1])))
            found.setdefault(low, {})[high] = link
    return found


def _to_nics(
    links: Mapping[tuple[str, str], DeviceLink], called: Mapping[str, str]
) -> dict[int, dict[str, DeviceLink]]:
    found: dict[int, dict[str, DeviceLink]] = {}
    for pair, link in sorted(links.items(), key=lambda item: item[0]):
        gpu = next((match for name in pair if (match := _GPU.fullmatch(name))), None)
        nic = next((name for name in pair if name in called), None)
        if gpu and nic:
            found.setdefault(int(gpu[1]), {})[called[nic]] = link
    return found
