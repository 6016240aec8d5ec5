"""What runs inside each rank: ``from airflow_llmsched import agent``. Standard library only; nothing outside a gang.

Importing this costs next to nothing: the functions load on first use.
"""

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing
if TYPE_CHECKING:
    from airflow_llmsched.agent.api import (
        RankLayout,
        checkpoint_interval_s,
        checkpoint_requested,
        checkpoint_saved,
        evaluating,
        heartbeat,
        layout,
        prune_checkpoints,
        ready,
        report,
        saving,
        stop_requested,
    )

__all__ = [
    "RankLayout",
    "checkpoint_interval_s",
    "checkpoint_requested",
    "checkpoint_saved",
    "evaluating",
    "heartbeat",
    "layout",
    "prune_checkpoints",
    "ready",
    "report",
    "saving",
    "stop_requested",
]


def __getattr__(name: str) -> object:
    """Load the functions of ``agent.api`` when one is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_llmsched.agent import api  # noqa: PLC0415  (the point of this function)

    return getattr(api, name)
