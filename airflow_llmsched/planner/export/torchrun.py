"""Arguments of ``torchrun``: how many processes on how many nodes. Everything else is the training script's.

Names as in torch.distributed.run of PyTorch 2.13.
"""

from __future__ import annotations

from airflow_llmsched.planner.export.gaps import Gap
from airflow_llmsched.planner.export.planned import PlannedRun, common_notes
from airflow_llmsched.planner.export.text import arguments_text
from airflow_llmsched.planner.perf.compression import pytorch_settings


def _uneven(run: PlannedRun) -> object | None:
    return run.ranks_on_nodes if len(set(run.ranks_on_nodes)) > 1 else None


UNEVEN_NODES = Gap(
    path="placement", why="one value for all nodes cannot say that they have different numbers of ranks", used=_uneven
)
GAPS = (UNEVEN_NODES,)


def arguments(run: PlannedRun) -> tuple[str, ...]:
    """Return the arguments that a plan fixes. Rendezvous and script are the launch's own."""
    return (
        f"--nnodes={len(run.ranks_on_nodes)}",
        f"--nproc-per-node={run.ranks_on_nodes[0]}",
        "--max-restarts=0",  # relaunching a gang is one decision for all nodes, taken outside
    )


def _compression(run: PlannedRun) -> tuple[str, ...]:
    compression = run.workload.compression
    line = None if compression is None else pytorch_settings(compression)
    return () if line is None else (f"Gradients are compressed by the script: {line}",)


def render(run: PlannedRun) -> str:
    """Return the argument list as text."""
    return arguments_text(arguments(run))


def notes(run: PlannedRun) -> tuple[str, ...]:
    """Say what the training script has to do itself."""
    return (
        *common_notes(run),
        f"torchrun starts ranks and splits nothing: the script must lay them out as {run.layout.describe()}, with "
        "tensor parallelism fastest, then context, expert, data and pipeline parallelism.",
        *_compression(run),
        "Add --rdzv-backend, --rdzv-endpoint and --rdzv-id, and the script.",
    )
