"""The tools that a plan can be written out for, and the one way to do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from airflow_llmsched.errors import SpecError, SpecErrors
from airflow_llmsched.planner.export import (
    accelerate,
    deepspeed,
    kai,
    kueue,
    megatron_bridge,
    megatron_lm,
    pod_groups,
    rank_files,
    slurm,
    torchrun,
    torchtitan,
    volcano,
)
from airflow_llmsched.planner.export.gaps import Gap, found_gaps, gap_error
from airflow_llmsched.planner.export.planned import PlannedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool: what it cannot express, its settings as text, and what they leave to the reader.

    ``splits`` is False for a launcher or scheduler, which starts ranks and knows nothing of how they share a model.
    """

    title: str
    file_name: str
    gaps: tuple[Gap, ...]
    render: Callable[[PlannedRun], str]
    notes: Callable[[PlannedRun], tuple[str, ...]]
    splits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A tool's settings as text, and what its reader has still to do."""

    tool: str
    file_name: str
    text: str
    notes: tuple[str, ...]


TOOLS: Mapping[str, Tool] = MappingProxyType({
    "megatron-lm": Tool(
        title="Megatron-LM argument list", file_name="megatron-lm.args", gaps=megatron_lm.GAPS,
        render=megatron_lm.render, notes=megatron_lm.notes,
    ),
    "megatron-bridge": Tool(
        title="Megatron-Bridge overrides", file_name="megatron-bridge.overrides", gaps=megatron_bridge.GAPS,
        render=megatron_bridge.render, notes=megatron_bridge.notes,
    ),
    "torchtitan": Tool(
        title="torchtitan job configuration", file_name="torchtitan.toml", gaps=torchtitan.GAPS,
        render=torchtitan.render, notes=torchtitan.notes,
    ),
    "deepspeed": Tool(
        title="DeepSpeed configuration", file_name="deepspeed.json", gaps=deepspeed.GAPS,
        render=deepspeed.render, notes=deepspeed.notes,
    ),
    "accelerate": Tool(
        title="Accelerate configuration", file_name="accelerate.yaml", gaps=accelerate.GAPS,
        render=accelerate.render, notes=accelerate.notes,
    ),
    "torchrun": Tool(
        title="torchrun arguments", file_name="torchrun.args", gaps=torchrun.GAPS,
        render=torchrun.render, notes=torchrun.notes, splits=False,
    ),
    "kueue": Tool(
        title="Kueue topology annotations", file_name="kueue.yaml", gaps=kueue.GAPS,
        render=kueue.render, notes=kueue.notes, splits=False,
    ),
    "volcano": Tool(
        title="Volcano Job", file_name="volcano.json", gaps=volcano.GAPS,
        render=volcano.render, notes=volcano.notes, splits=False,
    ),
    "kai": Tool(
        title="KAI scheduler annotations", file_name="kai.yaml", gaps=kai.GAPS,
        render=kai.render, notes=kai.notes, splits=False,
    ),
    "pod-groups": Tool(
        title="Kubernetes PodGroups", file_name="pod-groups.json", gaps=pod_groups.GAPS,
        render=pod_groups.render, notes=pod_groups.notes, splits=False,
    ),
    "slurm": Tool(
        title="sbatch options", file_name="slurm.args", gaps=slurm.GAPS,
        render=slurm.render, notes=slurm.notes, splits=False,
    ),
    "hostfile": Tool(
        title="Open MPI hostfile", file_name="hostfile", gaps=(),
        render=rank_files.hostfile, notes=rank_files.hostfile_notes, splits=False,
    ),
    "rankfile": Tool(
        title="Open MPI rankfile", file_name="rankfile", gaps=(),
        render=rank_files.rankfile, notes=rank_files.rankfile_notes, splits=False,
    ),
    "slurm-hostfile": Tool(
        title="task order for srun", file_name="slurm-hostfile", gaps=(),
        render=rank_files.slurm_hostfile, notes=rank_files.slurm_hostfile_notes, splits=False,
    ),
    "ranks": Tool(
        title="table of ranks", file_name="ranks.tsv", gaps=(),
        render=rank_files.table, notes=rank_files.table_notes, splits=False,
    ),
    "environment": Tool(
        title="environment of ranks", file_name="ranks.env", gaps=(),
        render=rank_files.environment, notes=rank_files.environment_notes, splits=False,
    ),
})  # fmt: skip


def write_out(name: str, run: PlannedRun) -> Settings:
    """Return the settings of one tool.

    Raises:
        SpecError: there is no such tool, or it cannot express the layout; the message names what, and who can.
    """
    tool = find_tool(name)
    gaps = found_gaps(tool.gaps, run)
    if gaps:
        able = [other for other in able_tools(run) if TOOLS[other].splits]
        errors = [gap_error(gap, value, able=able) for gap, value in gaps]
        raise errors[0] if len(errors) == 1 else SpecErrors(errors)
    return Settings(tool=name, file_name=tool.file_name, text=tool.render(run), notes=tool.notes(run))


def find_tool(name: str, *, path: str = "tool") -> Tool:
    """Return a tool by name. Raises ``SpecError``, with the ``path`` of who names it and the tools that there are."""
    try:
        return TOOLS[name]
    except KeyError:
        raise SpecError(path=path, value=name, hint=f"no such tool; known: {', '.join(TOOLS)}") from None


def able_tools(run: PlannedRun) -> tuple[str, ...]:
    """Return the names of the tools that can express a run, in the order of the table."""
    return tuple(name for name, tool in TOOLS.items() if not found_gaps(tool.gaps, run))
