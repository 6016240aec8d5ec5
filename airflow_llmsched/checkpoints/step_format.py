"""The shape of a format whose checkpoints are directories named by their step, each with or without a seal."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

from airflow_llmsched.checkpoints.inspection import Inventory, inspect, scan_steps, weigh
from airflow_llmsched.domain.checkpoint import CheckpointRef, Compatibility, Verdict, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout


class StepFormat(ABC):
    """``ports.CheckpointFormat`` for whoever can take stock of one directory and say who loads it."""

    name: ClassVar[str]
    step_name: ClassVar[re.Pattern[str]]
    """Matches the names of finished checkpoints; its first group is the step."""

    def scan(self, root: str) -> Iterator[CheckpointRef]:
        """Yield checkpoints below ``root``, highest step first. Raises ``CouldNotLookError``, ``SpecError``."""
        return scan_steps(root, name_pattern=self.step_name, format_name=self.name, take_stock=self.take_stock)

    def verify(self, ref: CheckpointRef, *, depth: VerifyDepth) -> Verdict:
        """Check ``ref`` as :meth:`take_stock` does.

        Raises:
            CouldNotLookError: storage could not be read, so nothing is known.
        """
        return inspect(ref, depth=depth, take_stock=self.take_stock)

    def can_resume(self, ref: CheckpointRef, layout: ParallelLayout) -> Compatibility:
        """Say what :meth:`compatibility` does, of a checkpoint that is whole.

        Raises:
            CouldNotLookError: storage could not be read.
        """
        return weigh(ref, partial(self.compatibility, layout=layout))

    @abstractmethod
    def take_stock(self, directory: Path, step: int, depth: VerifyDepth) -> Inventory:
        """Return what ``directory`` holds, having looked as deep as ``depth``.

        Raises ``Torn``, ``FileNotFoundError`` when it is gone, ``CouldNotLookError``.
        """

    @abstractmethod
    def compatibility(self, directory: Path, *, layout: ParallelLayout) -> Compatibility:
        """Say whether a gang with ``layout`` can load what is in ``directory``. Raises as :meth:`take_stock`."""
