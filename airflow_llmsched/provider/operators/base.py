"""What our operators share: the run they belong to, and errors that Airflow must not retry."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmsched.errors import CapacityError, LeftoverError, LlmschedError, TransientError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_llmsched.domain.workload import WorkloadSpec
    from airflow_llmsched.provider.run_scope import RunScope


class RunOperator(BaseOperator):
    """Base of the operators that work on one run.

    Args:
        run_scope: names the run within the DAG run; by default the task group's id, so that every task of a
            ``pretraining_task_group`` shares one run.
    """

    def __init__(self, *, run_scope: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_scope = run_scope
        self.run_key: str | None = None

    def scope(self, context: Context) -> RunScope:
        """Return the run this task works on, and remember its key for the links."""
        from airflow_llmsched.provider.run_scope import scope_of

        scope = scope_of(context, run_scope=self.run_scope)
        self.run_key = scope.run_key
        return scope

    def workload(self, scope: RunScope) -> WorkloadSpec:
        """Return the spec that ``OpenRunOperator`` stored. Fails the task when the run was never opened."""
        from airflow_llmsched.provider.masking import mask_settings
        from airflow_llmsched.provider.run_files import read_spec

        with failing_for_good():
            spec = read_spec(scope)
        mask_settings(spec)
        return spec


class EngineOperator(RunOperator):
    """Base of the operators that ask an engine.

    Args:
        engine: name of an engine adapter, of a cluster in the deployment's fleet file, or ``fleet`` for all of these.
        engine_options: JSON-safe options of the engine; ``root`` defaults to a folder below the state root.

    Others as in ``RunOperator``.
    """

    template_fields: Sequence[str] = ("engine", "engine_options")

    def __init__(
        self, *, engine: str = "local", engine_options: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.engine = engine
        self.engine_options = dict(engine_options or {})

    def options_in(self, scope: RunScope) -> dict[str, Any]:
        """Return the engine's options for a run: they name it where the engine's machines are what it rents."""
        from airflow_llmsched.provider.run_engine import options_of_run

        return options_of_run(self.engine_options, scope.run_key)


@contextlib.contextmanager
def failing_for_good() -> Iterator[None]:
    """Turn errors that a retry cannot mend into ``AirflowFailException``; let the others be retried."""
    try:
        yield
    except (CapacityError, LeftoverError, TransientError):
        raise
    except LlmschedError as error:
        raise AirflowFailException(str(error)) from error


def now_s() -> float:
    """Return Unix seconds: the one clock of the provider."""
    return time.time()
