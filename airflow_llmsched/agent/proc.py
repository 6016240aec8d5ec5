"""Processes by identity, from /proc: who they are, who descends from whom, and ending them all. Linux only.

A bare pid is never trusted: the kernel gives it to another process once its owner is gone. An identity is pid, start
time in clock ticks since boot, boot and machine. One of an earlier boot is dead; of one of another machine nothing can
be said here, and whoever asks is told so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import signal
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_POLL_S = 0.02
_KILL_LIMIT_S = 4.0
"""How long to go on sending SIGKILL. Together with the grace it stays below the promised grace + 5 s."""


class Process(NamedTuple):
    """One process, as long as it lives. ``where`` is boot and machine."""

    pid: int
    start_ticks: int
    where: str

    def text(self) -> str:
        """Return a form for environment variables and files."""
        return f"{self.pid}:{self.start_ticks}:{self.where}"

    @classmethod
    def parse(cls, text: str) -> Process:
        """Rebuild from :meth:`text`. Raises ``ValueError``."""
        pid, ticks, where = text.split(":", 2)
        return cls(int(pid), int(ticks), where)


class Stat(NamedTuple):
    """What /proc/<pid>/stat says that we need."""

    state: str
    parent_pid: int
    start_ticks: int

    @property
    def dead(self) -> bool:
        """Whether only an unreaped entry is left."""
        return self.state in ("Z", "X")


class ElsewhereError(OSError):
    """A process of another machine: only that machine, or its peers, can say whether it lives."""


@functools.cache
def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def uptime_s() -> float:
    """Return for how long this machine has been up, sleep included (seconds): a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@functools.cache
def here() -> str:
    """Return the kernel's id of this boot and a name of this machine: ``BOOT@MACHINE``.

    The name is made of the machine's id and its host name, as machines made from one image often share the former. The
    id itself is not for others to see (machine-id(5)).
    """
    machine = b""
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_bytes().strip()
    return f"{boot_id()}@{zlib.crc32(machine + os.uname().nodename.encode()):08x}"


def is_of_this_boot(process: Process) -> bool:
    """Whether a process is, or was, one of this machine since it was started; False: of a boot before.

    Raises ``ElsewhereError`` for one of another machine. A container's own name for the machine it is on does not
    matter: it has the same boot.
    """
    boot, _, machine = process.where.partition("@")
    own_boot, _, own_machine = here().partition("@")
    if boot == own_boot:
        return True
    if machine and machine != own_machine:
        raise ElsewhereError(errno.EXDEV, f"process {process.text()} is another machine's, which alone can look at it")
    return False


def read_stat(pid: int) -> Stat | None:
    """Return a process's state, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (read in bulk)
            data = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, parentheses too: fields count from the last one.
    fields = data[data.rindex(b")") + 2 :].split()
    return Stat(state=fields[0].decode(), parent_pid=int(fields[1]), start_ticks=int(fields[19]))


def identify(pid: int) -> Process | None:
    """Return the identity of the process that has ``pid`` now, or None."""
    stat = read_stat(pid)
    return None if stat is None else Process(pid, stat.start_ticks, here())


def myself() -> Process:
    """Return this process's identity."""
    process = identify(os.getpid())
    assert process is not None
    return process


def started_at_s(process: Process) -> float:
    """Return when a process started (Unix seconds), to a hundredth of a second or so."""
    booted_at_s = time.time() - uptime_s()
    return booted_at_s + process.start_ticks / os.sysconf("SC_CLK_TCK")


def alive(process: Process) -> bool:
    """Whether exactly this process still runs. A zombie does not. Raises ``ElsewhereError``."""
    if not is_of_this_boot(process):
        return False
    stat = read_stat(process.pid)
    return stat is not None and not stat.dead and stat.start_ticks == process.start_ticks


def everything() -> dict[int, Stat]:
    """Return all processes by pid."""
    stats = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  (names only, in bulk)
        if name.isdigit() and (stat := read_stat(int(name))) is not None:
            stats[int(name)] = stat
    return stats


def descendants(root_pid: int) -> list[Process]:
    """Return the live descendants of a process, parents before children."""
    return _below([root_pid], everything())


class Census:
    """All processes and their environments, read once for whoever asks about many marks at the same time."""

    def __init__(self) -> None:
        self._taken_ticks = 0
        self._stats: dict[int, Stat] | None = None
        self._environments: dict[int, frozenset[bytes]] = {}

    def marked(self, marks: Mapping[str, str], *, left_by: Process | None = None) -> list[Process]:
        """Return live processes, except this one, whose environment holds every mark. Parents before children.

        They are those that ``left_by``, which has ended, may have left: should it have started since the processes were
        counted, they are counted again.
        """
        stats = self._count(left_by)
        wanted = _entries(marks)
        mine = os.getpid()
        hits = {
            pid for pid, stat in stats.items() if pid != mine and not stat.dead and wanted <= self._environment(pid)
        }

        def depth(pid: int) -> int:
            steps = 0
            while (stat := stats.get(pid)) is not None and stat.parent_pid in hits:
                pid, steps = stat.parent_pid, steps + 1
            return steps

        ordered = sorted(hits, key=lambda pid: (depth(pid), pid))
        return [Process(pid, stats[pid].start_ticks, here()) for pid in ordered]

    def environments(self, name: str) -> dict[Process, dict[str, str]]:
        """Return the environments of live processes, except this one, in which ``name`` is set."""
        start = f"{name}=".encode()
        mine = os.getpid()
        found = {}
        for pid, stat in self._count(None).items():
            entries = self._environment(pid)
            if pid != mine and not stat.dead and any(entry.startswith(start) for entry in entries):
                pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in entries)
                found[Process(pid, stat.start_ticks, here())] = {key: value for key, _, value in pairs}
        return found

    def _count(self, left_by: Process | None) -> dict[int, Stat]:
        if self._stats is None or (left_by is not None and left_by.start_ticks >= self._taken_ticks):
            self._taken_ticks = int(uptime_s() * os.sysconf("SC_CLK_TCK"))
            self._stats, self._environments = everything(), {}
        return self._stats

    def _environment(self, pid: int) -> frozenset[bytes]:
        if pid not in self._environments:
            self._environments[pid] = _environment(pid)
        return self._environments[pid]


def marked(marks: Mapping[str, str]) -> list[Process]:
    """Return live processes now, except this one, whose environment holds every mark. Parents before children."""
    return Census().marked(marks)


def carries(process: Process, marks: Mapping[str, str]) -> bool:
    """Whether a process's environment holds every mark."""
    return _entries(marks) <= _environment(process.pid)


def send(process: Process, number: int) -> bool:
    """Signal exactly this process, by a pidfd: a reused pid is not hit. Say whether it was there."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    else:
        return True
    finally:
        os.close(fd)


def end_all(
    find: Callable[[], Iterable[Process]],
    *,
    grace_s: float,
    reap: Callable[[], None] = lambda: None,
) -> list[Process]:
    """End what ``find`` returns, over and over until it returns nothing: SIGTERM, then SIGKILL after the grace.

    ``find`` lists parents before children, so that a launcher is told before the workers it would start again.
    Newcomers get their SIGTERM as well, and so do descendants that ``find`` cannot know: once seen below one of its
    processes they are ended though their parent is gone. Returns what could not be ended (in the kernel's hands, or not
    ours).
    """
    terminated: set[Process] = set()
    known: set[Process] = set()
    deadline_s = time.monotonic() + grace_s
    while True:
        left = _left(find, reap, known)
        if not left or time.monotonic() >= deadline_s:
            break
        for process in left:
            if process not in terminated:
                terminated.add(process)
                send(process, signal.SIGTERM)
                send(process, signal.SIGCONT)  # a stopped process would never see the SIGTERM
        time.sleep(min(_POLL_S, max(0.0, deadline_s - time.monotonic())))
    give_up_s = time.monotonic() + _KILL_LIMIT_S
    while left and time.monotonic() < give_up_s:
        for process in _frozen(left, lambda: _left(find, reap, known), give_up_s=give_up_s):
            send(process, signal.SIGKILL)
        time.sleep(_POLL_S)
        left = _left(find, reap, known)
    return left


def next_signal(numbers: Collection[int], *, timeout_s: float) -> int | None:
    """Return the number of a blocked signal that has come, None when none did within ``timeout_s``.

    ``signal.sigtimedwait`` returns memory it never wrote when it was interrupted and its time is over by then: so it
    does in a process that was stopped meanwhile and goes on (SIGSTOP and SIGCONT, a debugger, a suspended machine).
    Only what was asked for is a signal.
    """
    got = signal.sigtimedwait(numbers, timeout_s)
    return got.si_signo if got is not None and got.si_signo in numbers else None


def become_subreaper() -> None:
    """Adopt orphaned descendants instead of losing them to init. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _left(find: Callable[[], Iterable[Process]], reap: Callable[[], None], known: set[Process]) -> list[Process]:
    """Return what ``find`` finds, all that descends from it, and what did so when last looked. Adds it to ``known``."""
    reap()
    roots = [*find(), *known]
    stats = everything()
    live = [process for process in dict.fromkeys(roots) if _is_live(process, stats)]
    family = dict.fromkeys([*live, *_below([process.pid for process in live], stats)])
    family.pop(myself(), None)
    known.update(family)
    return list(family)


def _frozen(left: list[Process], look: Callable[[], list[Process]], *, give_up_s: float) -> list[Process]:
    """Stop all of ``left`` and whatever they had started meanwhile; return all of it.

    Who is killed one by one may start another in between, which nobody finds once its parent is gone.
    """
    stopped: set[Process] = set()
    while time.monotonic() < give_up_s:
        fresh = [process for process in left if process not in stopped]
        if not fresh:
            break
        for process in fresh:
            send(process, signal.SIGSTOP)
        stopped.update(fresh)
        left = look()
    return left


def _is_live(process: Process, stats: Mapping[int, Stat]) -> bool:
    stat = stats.get(process.pid) if is_of_this_boot(process) else None
    return stat is not None and not stat.dead and stat.start_ticks == process.start_ticks


def _below(roots: Iterable[int], stats: Mapping[int, Stat]) -> list[Process]:
    """Return the live descendants of ``roots``, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent_pid, []).append(pid)
    found: list[Process] = []
    level = [child for pid in roots for child in children.get(pid, [])]
    while level:
        found += [Process(pid, stats[pid].start_ticks, here()) for pid in level if not stats[pid].dead]
        level = [child for pid in level for child in children.get(pid, [])]
    return found


def _entries(marks: Mapping[str, str]) -> frozenset[bytes]:
    return frozenset(f"{name}={value}".encode() for name, value in marks.items())


def _environment(pid: int) -> frozenset[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  (read in bulk)
            return frozenset(file.read().split(b"\0"))
    except OSError:
        return frozenset()  # gone, or another user's and so not one of ours
