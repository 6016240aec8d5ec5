"""Secrets that came into a spec, say from an Airflow variable: hidden from logs, and kept out of argument lists."""

from __future__ import annotations

from typing import Any

from airflow.sdk._shared.secrets_masker import redact  # where Airflow 3.3 says that providers get it from
from airflow.sdk.log import mask_secret

from airflow_llmsched.domain.workload import EvaluationSpec, WorkloadSpec
from airflow_llmsched.errors import SpecError


def mask_settings(spec: WorkloadSpec) -> None:
    """Have Airflow hide, in this task's logs, the settings of ranks whose names say that they are secret.

    The task that rendered the spec hides what it read; the tasks after it only read the stored spec.
    """
    for name, value in spec.launcher.environment.items():
        mask_secret(value, name)


def refuse_secret_arguments(spec: WorkloadSpec) -> None:
    """Raise ``SpecError`` where a command holds what Airflow hides: everyone on a node can read argument lists.

    The error does not show the argument.
    """
    evaluation = spec.evaluation or EvaluationSpec()
    commands = {"launcher.command": spec.launcher.command, "evaluation.command": evaluation.command}
    commands |= {f"roles[{index}].command": role.command for index, role in enumerate(spec.roles)}
    for path, command in commands.items():
        for index, argument in enumerate(command):
            if _is_hidden(argument):
                hint = (
                    "holds a secret, and everyone on a node can read its programs' arguments: use launcher.environment"
                )
                raise SpecError(path=f"{path}[{index}]", hint=hint)


def _is_hidden(text: str) -> bool:
    hidden: Any = redact(text)
    return bool(hidden != text)
