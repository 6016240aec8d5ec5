"""What all formats share: finding step directories, in number order, and telling absent from unreadable."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_llmsched.agent.seal import Seal, SealError, read_seal
from airflow_llmsched.domain.checkpoint import SavedBy
from airflow_llmsched.errors import CouldNotLookError, SpecError

# Marks that savers put on a directory they have not finished: Hugging Face and DeepSpeed, Orbax, NeMo, rsync and ours.
_TEMP_NAME = re.compile(
    r"(?:tmp[-_.]|\.tmp[-_.]?|temp[-_.]|\.)(?P<head>.+)"
    r"|(?P<tail>.+?)(?:\.orbax-checkpoint-tmp.*|[-_.](?:tmp|temp|unfinished|partial|incomplete|inprogress)(?:[-_.]?\w+)?)"
)
_UNFINISHED = "-unfinished"
_RANK_MARKER = re.compile(r"\.?_?rank[-_]?(?P<rank>[0-9]{1,6})[-_.](?:done|complete|completed|success|ok)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDirectory:
    """A name that stands for a step. ``torn_reason`` is set when the name alone says it is torn.

    ``saved_by`` is the attempt in whose folder it lies, None in the root itself.
    """

    step: int
    path: Path
    torn_reason: str | None = None
    saved_by: SavedBy | None = None


class Torn(Exception):  # noqa: N818  # a verdict on the way up, not an error of the program
    """The checkpoint is incomplete or damaged. The text names the file and what is wrong with it."""


def step_directories(root: str, name_pattern: re.Pattern[str]) -> list[StepDirectory]:
    """Return what ``name_pattern`` matches in ``root`` and its attempts' folders (group 1 is the step), newest first.

    Numbers are compared as numbers: step_10000 is newer than step_9000. Of one step, finished names come first, and of
    those the later attempt's. An absent root has none.

    Raises:
        SpecError: the root is a URI, not a folder.
        CouldNotLookError: the root, or an attempt's folder, is there but cannot be listed.
    """
    if "://" in root:
        raise SpecError(path="checkpoint root", value=root, hint="must be a folder: mount the bucket, or copy it first")
    try:
        with os.scandir(root) as entries:
            names = {entry.name for entry in entries}
    except FileNotFoundError as error:
        if Path(root).is_symlink():
            raise could_not_look(root, error) from error
        return []
    except OSError as error:
        raise could_not_look(root, error) from error
    found = _steps_among(Path(root), names, name_pattern, saved_by=None)
    for name in names:
        saved_by = SavedBy.of_folder(name)
        if saved_by is not None:
            inner = Path(root) / name
            found += _steps_among(inner, _names_in(inner), name_pattern, saved_by=saved_by)
    return sorted(found, key=_newest_last, reverse=True)


def file_sizes(directory: Path) -> dict[str, int]:
    """Return the size in bytes of every regular file directly in ``directory``; folders end in ``/`` and have size 0.

    Raises:
        Torn: it is a file, or its links lead in a circle.
        FileNotFoundError: it is gone.
        CouldNotLookError: it could not be listed.
    """
    try:
        with os.scandir(directory) as entries:
            return dict(size for entry in entries if (size := _entry_size(entry)))
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise Torn(f"{directory.name} is a file, not a directory") from error
    except OSError as error:
        raise _torn_or_unknown(directory, error) from error


def size_of(directory: Path, path: str) -> int | None:
    """Return the bytes that the file ``path`` of ``directory`` has; None when absent. Raises as :func:`file_sizes`."""
    try:
        found = (directory / path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _torn_or_unknown(directory / path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise Torn(f"{path} is not a file")
    return found.st_size


def read_file(directory: Path, name: str) -> bytes | None:
    """Return the bytes of the file ``name`` of ``directory``; None when absent. Raises as :func:`file_sizes`."""
    try:
        return (directory / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _torn_or_unknown(directory / name, error) from error


def seal_of(directory: Path) -> Seal | None:
    """Return the seal of ``directory``, None when it has none. Raises as :func:`file_sizes`."""
    try:
        return read_seal(directory)
    except SealError as error:
        raise Torn(str(error)) from error
    except OSError as error:
        raise _torn_or_unknown(directory, error) from error


def check_ranks(what: str, ranks: Iterable[int], expected: Iterable[int]) -> None:
    """Raise ``Torn`` when a rank of ``expected`` is not among ``ranks``, saying how many are and which are not."""
    have, want = set(ranks), set(expected)
    missing = sorted(want - have)
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        raise Torn(f"only {len(want & have)} of {len(want)} ranks have {what}; missing: rank {shown}")


def check_rank_markers(names: Iterable[str], world: Iterable[int]) -> None:
    """Raise ``Torn`` when ranks leave completion markers (``rank_3.done``) but not all of ``world`` did."""
    marked = {int(found["rank"]) for name in names if (found := _RANK_MARKER.fullmatch(name))}
    if marked:
        check_ranks("a completion marker", marked, {*range(max(marked) + 1), *world})


def could_not_look(path: str | Path, error: OSError) -> CouldNotLookError:
    """Return the error for storage that could not be read."""
    return CouldNotLookError(
        f"cannot read {path}: {error.strerror or error}; check that it is mounted and readable, then look again. "
        "Nothing is known about the checkpoints there"
    )


@contextlib.contextmanager
def looking_at(path: str | Path) -> Iterator[None]:
    """Turn what the file system raises inside the block into ``Torn`` or ``CouldNotLookError``."""
    try:
        yield
    except OSError as error:
        raise _torn_or_unknown(Path(path), error) from error


def require_files(directory: Path, needed: Mapping[str, int], *, sizes: bool) -> dict[str, int]:
    """Return the size of every file of ``needed`` (name to least size). Raises ``Torn`` when one is absent or short."""
    found: dict[str, int] = {}
    for name, least in needed.items():
        size = size_of(directory, name)
        if size is None:
            raise Torn(f"{name} is missing")
        if sizes and size < least:
            raise Torn(f"{name} has {size} bytes, at least {least} are needed: it was cut short")
        found[name] = size
    return found


def _names_in(folder: Path) -> set[str]:
    """Return what lies in an attempt's folder; nothing when it was deleted meanwhile, or is no folder."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError as error:
        if folder.is_symlink():  # a mount that is not there
            raise could_not_look(folder, error) from error
        return set()
    except NotADirectoryError:
        return set()
    except OSError as error:
        raise could_not_look(folder, error) from error


def _steps_among(
    folder: Path, names: set[str], name_pattern: re.Pattern[str], *, saved_by: SavedBy | None
) -> list[StepDirectory]:
    found = (_step_directory(folder / name, names, name_pattern) for name in names)
    return [replace(one, saved_by=saved_by) for one in found if one is not None]


def _newest_last(one: StepDirectory) -> tuple[int, bool, bool, tuple[int, int], str]:
    by = (one.saved_by.generation, one.saved_by.attempt) if one.saved_by else (0, 0)
    return one.step, one.torn_reason is None, one.saved_by is not None, by, one.path.name


def _step_directory(path: Path, names: set[str], name_pattern: re.Pattern[str]) -> StepDirectory | None:
    finished = name_pattern.fullmatch(path.name)
    if finished:
        marker = path.name + _UNFINISHED
        reason = f"{marker} beside it says that its save did not finish" if marker in names else None
        return StepDirectory(step=int(finished[1]), path=path, torn_reason=reason)
    temp = _TEMP_NAME.fullmatch(path.name)
    inner = name_pattern.fullmatch(temp["head"] or temp["tail"]) if temp else None
    if not inner or (path.name.endswith(_UNFINISHED) and path.name.removesuffix(_UNFINISHED) in names):
        return None
    return StepDirectory(
        step=int(inner[1]), path=path, torn_reason=f"{path.name} is a temporary name: its save did not finish"
    )


def _entry_size(entry: os.DirEntry[str]) -> tuple[str, int] | None:
    try:
        if entry.is_dir():
            return entry.name + "/", 0
        return (entry.name, entry.stat().st_size) if entry.is_file() else None
    except FileNotFoundError:  # deleted meanwhile, or a link to nowhere: not there
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def _torn_or_unknown(path: Path, error: OSError) -> Torn | CouldNotLookError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return Torn(f"{path.name} is missing")
    if isinstance(error, IsADirectoryError):
        return Torn(f"{path.name} is a directory, not a file")
    if error.errno == errno.ELOOP:
        return Torn(f"{path.name} is a symbolic link that leads in a circle")
    if error.errno == errno.ENAMETOOLONG:
        return Torn(f"{path.name[:40]}... is a longer name than the file system allows")
    return could_not_look(path, error)
