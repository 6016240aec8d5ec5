"""What joins the devices inside a node, by files that an engine's options name: one node stands for all of its shape.

``nvidia-smi topo -m`` tells it, and no cluster does. A rank is then given accelerators that are near one another, and
a written-out rank the card and the NUMA node beside its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_llmsched.domain.node_topology import NodeTopology
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.topology.nvidia_smi import read_nvidia_smi


@dataclass(frozen=True, slots=True, kw_only=True)
class WiringFiles:
    """The path of a file for each node shape, as far as there are any."""

    paths: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, plain: object, *, path: str = "wirings") -> WiringFiles:
        """Return files given as plain values. Raises ``SpecError`` naming the field."""
        if isinstance(plain, WiringFiles):
            return plain
        if not isinstance(plain, Mapping):
            raise SpecError(path=path, value=plain, hint='must be paths by node shape: {"dgx-h100": "/etc/h100.topo"}')
        for shape, file in plain.items():
            if not isinstance(file, str) or not file.startswith("/"):
                hint = "must be the absolute path of a file with what nvidia-smi topo -m prints on such a node"
                raise SpecError(path=f"{path}.{shape}", value=file, hint=hint)
        return cls(paths={str(shape): file for shape, file in plain.items()})

    def read(self) -> dict[str, NodeTopology]:
        """Return what the files say, by node shape. Raises ``OSError``, and ``DataError`` with file and line."""
        return {shape: _read(Path(file)) for shape, file in self.paths.items()}


NO_WIRINGS = WiringFiles()


def _read(file: Path) -> NodeTopology:
    try:
        return read_nvidia_smi(file.read_text(encoding="utf-8")).node
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from error
