"""The option by which commands are told where a deployment keeps its runs."""

from __future__ import annotations

from typing import Any

import typer

VARIABLE = "AIRFLOW__LLMSCHED__STATE_ROOT"
"""Airflow's own name of ``[llmsched] state_root``: where that is set, nobody has to say it again."""


def state_root_option(text: str = "The deployment's state root.") -> Any:
    """Return ``--state-root``, with ``text`` as its help."""
    return typer.Option("--state-root", envvar=VARIABLE, help=text)
