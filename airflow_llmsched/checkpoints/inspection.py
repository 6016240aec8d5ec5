"""The walk every format takes: step directories to references, one directory to a verdict, its seal before all else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.agent.seal import SEAL_NAME, Seal, check
from airflow_llmsched.checkpoints.scan import StepDirectory, Torn, looking_at, step_directories
from airflow_llmsched.domain.checkpoint import CheckpointRef, Compatibility, Damaged, Sound, Verdict, VerifyDepth


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a complete checkpoint holds. ``saved_at_s`` is Unix seconds."""

    digest: str
    num_bytes: int
    world_size: int | None
    saved_at_s: float | None

    @classmethod
    def of_seal(cls, seal: Seal) -> Inventory:
        """Return what ``seal`` says."""
        return cls(digest=seal.digest, num_bytes=seal.num_bytes, world_size=seal.world_size, saved_at_s=seal.saved_at_s)


TakeStock = Callable[[Path, int, VerifyDepth], Inventory]
"""(directory, step, depth) -> its inventory. Raises ``Torn``, ``FileNotFoundError`` (gone), ``CouldNotLookError``."""


def scan_steps(
    root: str, *, name_pattern: re.Pattern[str], format_name: str, take_stock: TakeStock
) -> Iterator[CheckpointRef]:
    """Yield a reference for each step directory of ``root``, highest step first.

    The root is listed at the first step asked for, each directory when its turn comes; one that was deleted meanwhile
    is left out.
    """
    for found in step_directories(root, name_pattern):
        ref = _reference(found, format_name, take_stock)
        if ref is not None:
            yield ref


def inspect(ref: CheckpointRef, *, depth: VerifyDepth, take_stock: TakeStock) -> Verdict:
    """Return the verdict of ``take_stock`` on the directory of ``ref`` as it is now."""
    try:
        inventory = take_stock(Path(ref.path), ref.step, depth)
    except FileNotFoundError:
        return Damaged(reason=f"{ref.path} is missing")
    except Torn as torn:
        return Damaged(reason=str(torn))
    return Sound(depth=depth, num_bytes=inventory.num_bytes, digest=inventory.digest)


def weigh(ref: CheckpointRef, judge: Callable[[Path], Compatibility]) -> Compatibility:
    """Return what ``judge`` says of the directory of ``ref``, or why there is nothing whole to judge.

    Raises:
        CouldNotLookError: storage could not be read.
    """
    if ref.torn_reason:
        return Compatibility(ok=False, reason=ref.torn_reason)
    try:
        return judge(Path(ref.path))
    except FileNotFoundError:
        return Compatibility(ok=False, reason=f"{ref.path} is gone")
    except Torn as torn:
        return Compatibility(ok=False, reason=str(torn))


def check_seal(directory: Path, seal: Seal, *, step: int, depth: VerifyDepth) -> None:
    """Raise ``Torn`` when the seal is of another step or disagrees with a file, looking as deep as ``depth``."""
    if seal.step != step:
        raise Torn(f"{SEAL_NAME} is of step {seal.step}, the directory of step {step}")
    with looking_at(directory):
        problem = check(directory, seal, depth=depth.value)
    if problem:
        raise Torn(problem)


def modified_at_s(directory: Path, name: str) -> float:
    """Return when the file was last written, in Unix seconds. Raises ``Torn``, ``CouldNotLookError``."""
    with looking_at(directory / name):
        return (directory / name).stat().st_mtime


def _reference(found: StepDirectory, format_name: str, take_stock: TakeStock) -> CheckpointRef | None:
    torn_reason = found.torn_reason
    inventory = None
    if torn_reason is None:
        try:
            inventory = take_stock(found.path, found.step, VerifyDepth.LISTING)
        except FileNotFoundError:
            return None
        except Torn as torn:
            torn_reason = str(torn)
    return CheckpointRef(
        step=found.step,
        path=str(found.path),
        format=format_name,
        torn_reason=torn_reason,
        world_size=inventory.world_size if inventory else None,
        saved_at_s=inventory.saved_at_s if inventory else None,
        saved_by=found.saved_by,
    )
