"""The attempts' folders on the cluster's shared file system: seen from here, or through a command where they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from airflow_llmsched.engines.slurm.runner import Runner
from airflow_llmsched.errors import CouldNotLookError

_LIMIT_S = 60.0


class Shelf(Protocol):
    """See ``agent.shelf.Shelf``, which is one. Raises ``OSError``, ``ValueError`` or ``CouldNotLookError``."""

    def claim(self, *, name: str, submit: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
        """Make the attempt's folder, with what its ranks' environment is to hold; False when its name is taken."""

    def abandon(self, *, name: str) -> bool:
        """Take the name of an attempt that nobody submitted; False when somebody had."""

    def names(self) -> list[str]:
        """Return all attempts."""

    def look(self, *, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        """Return what the files say of each attempt, None of one that has no folder."""

    def stop(self, *, name: str, grace_s: float) -> None:
        """Tell the attempt's agents to end it, and its job not to start it."""

    def give_up(self, *, name: str, reason: str) -> bool:
        """Take the job's place, so that no job will ever start the attempt; False when a job has started it."""

    def end(self, *, name: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Write down how the attempt ended; return what stands."""

    def log_tails(self, *, name: str, ranks: Sequence[int], num_lines: int) -> list[str]:
        """Return the last lines of each rank."""


class RemoteShelf:
    """A ``Shelf`` where ``runner`` runs commands: Python with our agent is started there for each call."""

    def __init__(self, *, runner: Runner, python: str, root: str) -> None:
        self._runner = runner
        self._python = python
        self._root = root

    def claim(self, *, name: str, submit: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
        """See ``Shelf``."""
        return bool(self._call("claim", name=name, submit=dict(submit), environment=dict(environment)))

    def abandon(self, *, name: str) -> bool:
        """See ``Shelf``."""
        return bool(self._call("abandon", name=name))

    def names(self) -> list[str]:
        """See ``Shelf``."""
        return list(self._call("names"))

    def look(self, *, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        """See ``Shelf``."""
        return dict(self._call("look", names=list(names)))

    def stop(self, *, name: str, grace_s: float) -> None:
        """See ``Shelf``."""
        self._call("stop", name=name, grace_s=grace_s)

    def give_up(self, *, name: str, reason: str) -> bool:
        """See ``Shelf``."""
        return bool(self._call("give_up", name=name, reason=reason))

    def end(self, *, name: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Shelf``."""
        return dict(self._call("end", name=name, status=dict(status)))

    def log_tails(self, *, name: str, ranks: Sequence[int], num_lines: int) -> list[str]:
        """See ``Shelf``."""
        return list(self._call("log_tails", name=name, ranks=list(ranks), num_lines=num_lines))

    def _call(self, call: str, **arguments: Any) -> Any:
        argv = [self._python, "-P", "-m", "airflow_llmsched.agent.shelf"]
        asked = json.dumps({"root": self._root, "call": call, "arguments": arguments})
        done = self._runner.run(argv, stdin=asked, limit_s=_LIMIT_S)
        if done.exit_code != 0:
            said = done.stderr.strip().rpartition("\n")[2][:400]
            raise CouldNotLookError(f"the cluster's files could not be reached ({call}): {said}; look again")
        try:
            return json.loads(done.stdout)["result"]
        except (ValueError, KeyError) as error:
            raise CouldNotLookError(f"the cluster's files: {call} answered no JSON: {done.stdout[:200]!r}") from error
