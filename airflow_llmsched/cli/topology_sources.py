"""Files that ``llmsched topology`` and ``llmsched plan --topology`` read, and how a file says what it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.preflight import PreflightRecord
from airflow_llmsched.domain.topology import TopologyTree
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.specs import topology_file
from airflow_llmsched.topology.aws import read_aws
from airflow_llmsched.topology.fields import parse_json
from airflow_llmsched.topology.hypernodes import read_hypernodes
from airflow_llmsched.topology.ibdiagnet import read_ibdiagnet
from airflow_llmsched.topology.ibnetdiscover import read_ibnetdiscover
from airflow_llmsched.topology.kubernetes import read_kubernetes
from airflow_llmsched.topology.measured import Measurement, read_nccl_tests, read_preflight, with_measured
from airflow_llmsched.topology.nvidia_smi import NodeReading, read_nvidia_smi
from airflow_llmsched.topology.reading import MAX_TEXT, Machines, Oddities, Reading
from airflow_llmsched.topology.rehung import rehung, usual_slots
from airflow_llmsched.topology.slurm import read_slurm
from airflow_llmsched.topology.table import read_table

_HEAD_CHARS = 65_536


class Format(StrEnum):
    """What a file holds. ``auto``: look into it."""

    AUTO = "auto"
    YAML = "yaml"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    HYPERNODES = "hypernodes"
    AWS = "aws"
    NVIDIA_SMI = "nvidia-smi"
    IBNETDISCOVER = "ibnetdiscover"
    IBDIAGNET = "ibdiagnet"
    CSV = "csv"
    JSON = "json"
    """What ``llmsched topology show --json`` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How to read a file. ``machines`` is for sources that only name nodes, ``resource`` for Kubernetes.

    ``topology`` is which one, where a source has several; ``network`` is a file that says where the nodes hang instead,
    and ``measured`` are files whose rates override its links.
    """

    format: Format = Format.AUTO
    machines: Machines = field(default_factory=Machines)
    topology: str | None = None
    resource: str | None = None
    network: Path | None = None
    measured: tuple[Path, ...] = ()


def read_source(path: Path, asked: Asked) -> Reading | NodeReading:
    """Return what a file says of a fleet, or of one node. Raises ``DataError``, or ``SpecError`` for what is asked."""
    text = _text(path)
    found = _detect(text, path) if asked.format is Format.AUTO else asked.format
    try:
        return _READERS[found](_Job(text, path, asked))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def read_tree(path: Path, asked: Asked) -> Reading:
    """Return what a file says of a fleet, with what was measured. Raises as :func:`read_source`."""
    reading = read_source(path, asked)
    if isinstance(reading, NodeReading):
        raise SpecError(path=str(path), hint="is of one node, and not of a fleet: hand over a list of nodes")
    return override(reading, asked)


def override(reading: Reading, asked: Asked) -> Reading:
    """Return a reading in another file's network, and with what others measured, as asked.

    Raises ``DataError``, or ``SpecError`` for a file that was measured with and says nothing of links.
    """
    if asked.network is not None:
        machines = Machines(num_slots=usual_slots(reading.tree))
        network = read_tree(asked.network, Asked(machines=machines, topology=asked.topology))
        moved = rehung(reading.tree, network.tree)
        reading = Reading(tree=moved.tree, warnings={**reading.warnings, **network.warnings, **moved.warnings})
    if not asked.measured:
        return reading
    odd = Oddities()
    measurements = [each for file in asked.measured for each in _measurements(file, odd)]
    measured = with_measured(reading.tree, measurements)
    return Reading(tree=measured.tree, warnings={**reading.warnings, **odd.counted(), **measured.warnings})


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_TEXT + 1)
    except OSError as error:
        raise SpecError(path=str(path), hint=f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_TEXT:
        raise DataError(f"{path}: is longer than {MAX_TEXT} bytes. Cut it down")
    return data.decode("utf-8", errors="replace")  # names of switches are in any encoding


_SIGNS: tuple[tuple[Format, re.Pattern[str]], ...] = (
    (Format.IBDIAGNET, re.compile(r'^\{\s*(?:CA|SW)\s+Ports:|^".*",[^,]*,\s*0x[0-9A-Fa-f]+,\s*LID\s', re.MULTILINE)),
    (Format.IBNETDISCOVER, re.compile(r'^\s*(?:vendid=0x|(?:Switch|Ca)\s+\d+\s+"[SH]-)', re.MULTILINE)),
    (Format.SLURM, re.compile(r"(?im)^\s*(?:SwitchName|BlockName|BlockSizes)\s*=|^-\s+topology\s*:")),
    (Format.NVIDIA_SMI, re.compile(r"^[\s#]*(?:\x1b\[[0-9;]*m|\s)*GPU0\s.*(?:GPU1|Affinity)", re.MULTILINE)),
    (Format.YAML, re.compile(r"^(?:version|levels)\s*:", re.MULTILINE)),
    (Format.CSV, re.compile(r"\A\ufeff?[^\n\r]*,")),
)


def _detect(text: str, path: Path) -> Format:
    """Return what a text is, by what no other source has."""
    if not text.strip():
        raise SpecError(path=str(path), hint="is empty: hand over all that the source printed")
    head = text[:_HEAD_CHARS]
    for found, sign in _SIGNS[:1]:
        if sign.search(head):
            return found
    is_json = text.lstrip()[:1] in {"{", "["}
    named = (
        _detect_json(text, path) if is_json else next((each for each, sign in _SIGNS[1:] if sign.search(head)), None)
    )
    if named is not None:
        return named
    known = ", ".join(each.value for each in Format if each is not Format.AUTO)
    raise SpecError(path=str(path), hint=f"does not look like any source that is known. Say which: --format {known}")


def _detect_json(text: str, path: Path) -> Format | None:
    document = parse_json(text, source=str(path))
    if not isinstance(document, Mapping):
        return None
    if "levels" in document and "nodes" in document:
        return Format.JSON
    if "Instances" in document:
        return Format.AWS
    if not {"items", "kind"} & document.keys():
        return None
    items = document.get("items")
    kinds = {each.get("kind") for each in items if isinstance(each, Mapping)} if isinstance(items, list) else set()
    return Format.HYPERNODES if "HyperNode" in kinds else Format.KUBERNETES


def _kept(text: str) -> Reading:
    try:
        return Reading(tree=codec.from_json(TopologyTree, text))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        raise DataError(f"{where}: {first['msg']}. Write it anew with llmsched topology show --json") from error


def _measurements(path: Path, odd: Oddities) -> list[Measurement]:
    text = _text(path)
    try:
        if not text.lstrip().startswith("{"):
            return [read_nccl_tests(text)]
        return read_preflight(codec.from_json(PreflightRecord, text), odd)
    except ValidationError as error:
        hint = "is no preflight.json of a run's folder. Hand one over, or nccl-tests' output"
        raise SpecError(path="--measured", value=str(path), hint=hint) from error
    except DataError as error:
        raise SpecError(path="--measured", value=str(path), hint=str(error)) from error


@dataclass(frozen=True, slots=True)
class _Job:
    """What a reader is handed."""

    text: str
    path: Path
    asked: Asked


_READERS: Mapping[Format, Callable[[_Job], Reading | NodeReading]] = {
    Format.YAML: lambda job: Reading(tree=topology_file.loads(job.text, file=str(job.path))),
    Format.SLURM: lambda job: read_slurm(job.text, name=job.asked.topology, machines=job.asked.machines),
    Format.KUBERNETES: lambda job: read_kubernetes(
        parse_json(job.text, source="Kubernetes objects"), topology=job.asked.topology, resource=job.asked.resource
    ),
    Format.HYPERNODES: lambda job: read_hypernodes(
        parse_json(job.text, source="Kubernetes objects"), resource=job.asked.resource
    ),
    Format.AWS: lambda job: read_aws(parse_json(job.text, source="DescribeInstanceTopology")),
    Format.NVIDIA_SMI: lambda job: read_nvidia_smi(job.text),
    Format.IBNETDISCOVER: lambda job: read_ibnetdiscover(job.text, machines=job.asked.machines),
    Format.IBDIAGNET: lambda job: read_ibdiagnet(job.text, machines=job.asked.machines),
    Format.CSV: lambda job: read_table(job.text, machines=job.asked.machines),
    Format.JSON: lambda job: _kept(job.text),
}
