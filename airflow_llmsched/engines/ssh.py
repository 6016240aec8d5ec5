"""Commands on other machines over SSH, for every engine that needs them. Synchronous outside, asyncssh inside.

One event loop per process runs all of it, on a thread of its own, and keeps one connection to each machine, over which
any number of commands run. A machine that is slow is told from one that is silent by SSH's own keep-alive messages: a
command may take as long as its limit says, while the machine goes on answering those.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import SpecError

if TYPE_CHECKING:
    import asyncssh

_RUN = EffectPoint("ssh.run")

_REACH_LIMIT_S = 1.5
"""How long a machine may take to accept a connection; what comes after may take longer: it then does answer."""

_LOGIN_LIMIT_S = 20.0
_PAUSE_S = 0.1
_KEEP_ALIVES = 3
_MAX_STDERR_BYTES = 16 * 1024
_CHUNK_BYTES = 256 * 1024
_MAX_SHOWN = 500

_SHORT_S = 20.0
"""A command that may take longer than this, such as one that waits for a grace to pass, leaves room for a look."""

_KEPT_FOR_LOOKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where to log in. ``name`` is for messages."""

    name: str
    address: str
    port: int = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """As whom to log in, and how to know the machine: paths of the private key and of the known host keys.

    A machine that answers nothing for ``silence_limit_s`` is silent. At most ``max_sessions`` commands run on one at a
    time (sshd's own default for ``MaxSessions`` is 10); those that may take long leave some for a look, which must not
    take a machine that has much to do for a silent one.
    """

    user: str
    key: str
    known_hosts: str
    silence_limit_s: float = 5.0
    max_sessions: int = 8

    def __post_init__(self) -> None:
        """Raise ``SpecError`` for what no login can be made with."""
        for name in ("key", "known_hosts"):
            path = getattr(self, name)
            if not path.startswith("/"):
                raise SpecError(path=name, value=path, hint="must be an absolute path, the same for every process")
        if not self.user:
            raise SpecError(path="user", value=self.user, hint="must name whom to log in as")
        if not self.silence_limit_s > 0:
            raise SpecError(path="silence_limit_s", value=self.silence_limit_s, hint="must be above 0 s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run: an argument list, which meets the remote shell quoted, and what it reads. Never a secret in argv.

    ``answer`` begins the line by which a program answers each line that it reads, where it is one that does so until
    there are no more: it is then kept for the next command of the same arguments, which spares its start.
    """

    argv: tuple[str, ...]
    reads: bytes = b""
    limit_s: float = 20.0
    max_output_bytes: int = 4 * 1024 * 1024
    answer: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that ran. ``code`` is None when a signal ended it."""

    output: bytes
    errors: str
    code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Nobody can say what came of a command, and why: the machine is silent, or it did not come to an end in time.

    ``is_refused``: the machine answers, but not to us, or is not the one it should be. Somebody must mend that.
    """

    reason: str
    is_refused: bool = False


Outcome = Done | Unanswered


def run(commands: Mapping[Machine, Command], access: Access) -> Mapping[Machine, Outcome]:
    """Run one command on each machine, all at once. Each gets its own outcome; nothing is raised for one of them.

    A command whose connection broke is run again, as long as its machine is not silent for too long: each must be one
    that may run twice.
    """
    if not commands:
        return {}
    outcomes: Mapping[Machine, Outcome] = _loop().run(_run_all(commands, access))
    return outcomes


async def _run_all(commands: Mapping[Machine, Command], access: Access) -> dict[Machine, Outcome]:
    lines = _loop().lines
    for machine in commands:
        if (machine, access) not in lines:
            lines[machine, access] = _Line(machine, access)
    outcomes = await asyncio.gather(*(lines[each, access].run(command) for each, command in commands.items()))
    return dict(zip(commands, outcomes, strict=True))


class _Line:
    """The connection to one machine, made when it is needed and kept."""

    def __init__(self, machine: Machine, access: Access) -> None:
        self._machine = machine
        self._access = access
        self._connecting = asyncio.Lock()
        self._sessions = asyncio.Semaphore(access.max_sessions)
        self._long = asyncio.Semaphore(max(1, access.max_sessions - _KEPT_FOR_LOOKS))
        self._connection: asyncssh.SSHClientConnection | None = None
        self._keeping = asyncio.Lock()
        self._kept: _Kept | None = None

    async def run(self, command: Command) -> Outcome:
        """Run ``command``; where the connection breaks, once more over a new one.

        The limit of one that may take long begins with its turn: whoever waits for others has not been told anything.
        """
        if command.limit_s <= _SHORT_S:
            return await self._run_within(command)
        async with self._long:
            return await self._run_within(command)

    async def _run_within(self, command: Command) -> Outcome:
        try:
            async with asyncio.timeout(command.limit_s), self._sessions:
                return await self._run(command)
        except TimeoutError:
            return Unanswered(reason=f"{self._where} did not answer within {command.limit_s:g} s")
        except _TooMuchError as error:
            return Unanswered(reason=f"{self._where} wrote more than {error} bytes: not read", is_refused=True)
        except _SilentError as error:
            return Unanswered(reason=str(error), is_refused=error.is_refused)

    async def _run(self, command: Command) -> Done:
        """Run it. A connection that was kept may have died long ago: there is always time to make one more."""
        import asyncssh  # noqa: PLC0415  (only those who have such machines need it)

        silent_at_s = time.monotonic() + self._access.silence_limit_s + _REACH_LIMIT_S
        while True:
            connection = await self._connected(silent_at_s)
            try:
                if command.answer and not self._keeping.locked():
                    return await self._ask_kept(connection, command)
                return await _run_on(connection, command)
            except (asyncssh.DisconnectError, asyncssh.ChannelOpenError, ConnectionError) as error:
                await self._drop(connection)
                if time.monotonic() >= silent_at_s:
                    raise _SilentError(f"{self._where} is silent: {_said(error)}") from error
            await asyncio.sleep(_PAUSE_S)

    async def _ask_kept(self, connection: asyncssh.SSHClientConnection, command: Command) -> Done:
        """Ask the program that is kept, or one that is from now on; whatever goes wrong with it is the end of it."""
        async with self._keeping:
            kept, self._kept = self._kept, None
            if kept is not None and not kept.is_for(connection, command):
                kept.close()
                kept = None
            if kept is None:
                kept = await _Kept.start(connection, command)
            try:
                output = await kept.ask(command)
                if output is None:
                    return await kept.end()
                if kept.is_in_turn:
                    self._kept = kept
                return Done(output=output, errors="", code=0)
            finally:
                if self._kept is None:
                    kept.close()

    async def _connected(self, silent_at_s: float) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._connection = None
                self._connection = await self._connect(silent_at_s)
            return self._connection

    async def _drop(self, connection: asyncssh.SSHClientConnection) -> None:
        async with self._connecting:
            if self._connection is connection:
                self._connection = None
        connection.abort()

    async def _connect(self, silent_at_s: float) -> asyncssh.SSHClientConnection:
        """Log in. One that refuses connections may just be starting; one that lets us wait has had its chance."""
        import asyncssh  # noqa: PLC0415  (the same)

        while True:
            try:
                return await self._log_in()
            except asyncssh.HostKeyNotVerifiable as error:
                raise _SilentError(self._unknown_key(error), is_refused=True) from error
            except (asyncssh.PermissionDenied, asyncssh.KeyImportError, PermissionError) as error:
                raise _SilentError(
                    f"{self._where} lets {self._access.user!r} not in: {_said(error)}", is_refused=True
                ) from error
            except TimeoutError as error:
                raise _SilentError(f"{self._where} is silent: nothing accepts a connection") from error
            except (OSError, asyncssh.Error) as error:
                if time.monotonic() + _PAUSE_S >= silent_at_s:
                    raise _SilentError(f"{self._where} cannot be reached: {_said(error)}") from error
            await asyncio.sleep(_PAUSE_S)

    async def _log_in(self) -> asyncssh.SSHClientConnection:
        import asyncssh  # noqa: PLC0415  (the same)

        access = self._access
        async with asyncio.timeout(min(_REACH_LIMIT_S, access.silence_limit_s / 2)):
            _, writer = await asyncio.open_connection(self._machine.address, self._machine.port)
        found = writer.get_extra_info("socket").dup()
        writer.transport.abort()
        return await asyncssh.connect(
            self._machine.address,
            self._machine.port,
            sock=found,
            username=access.user,
            client_keys=[access.key],
            known_hosts=access.known_hosts,
            config=None,  # whatever the process's user has set up must not show
            agent_path=None,
            login_timeout=_LOGIN_LIMIT_S,
            keepalive_interval=access.silence_limit_s / (_KEEP_ALIVES + 1),
            keepalive_count_max=_KEEP_ALIVES,
        )

    @property
    def _where(self) -> str:
        return f"host {self._machine.name} ({self._machine.address}:{self._machine.port})"

    def _unknown_key(self, error: Exception) -> str:
        return (
            f"{self._where} has another host key than {self._access.known_hosts} says, or none there: {_said(error)}. "
            f"Compare it with what the machine's owner tells (ssh-keyscan -p {self._machine.port} "
            f"{self._machine.address}), and add it there"
        )


class _TooMuchError(Exception):
    """A command wrote more than its maker can want to read."""


class _SilentError(Exception):
    """Why a machine gave no answer."""

    def __init__(self, reason: str, *, is_refused: bool = False) -> None:
        super().__init__(reason)
        self.is_refused = is_refused


class _Kept:
    """A program that stays on a machine and answers line by line.

    ``is_in_turn``: it has said nothing after its last answer, which the next one could be mistaken for.
    """

    def __init__(self, connection: asyncssh.SSHClientConnection, argv: tuple[str, ...], process: Any) -> None:
        self.is_in_turn = True
        self._connection = connection
        self._argv = argv
        self._process = process
        self._output = bytearray()
        self._errors = asyncio.create_task(_last_words(process.stderr))

    @classmethod
    async def start(cls, connection: asyncssh.SSHClientConnection, command: Command) -> _Kept:
        """Start what ``command`` names."""
        with _RUN:
            process = await connection.create_process(shlex.join(command.argv), encoding=None)
        return cls(connection, command.argv, process)

    def is_for(self, connection: asyncssh.SSHClientConnection, command: Command) -> bool:
        """Whether it is what a command would start."""
        return self._connection is connection and self._argv == command.argv

    async def ask(self, command: Command) -> bytes | None:
        """Return what it wrote up to its first answer's end; None when it ended instead. Raises ``_TooMuchError``."""
        self._output = output = bytearray()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended, as reading shows
            self._process.stdin.write(command.reads)
            await self._process.stdin.drain()
        line_at = 0
        while chunk := await self._process.stdout.read(_CHUNK_BYTES):
            output += chunk
            # How much arrives at a time is the network's: nothing that is decided here may depend upon it.
            is_answered, line_at = _next_answer(output, command.answer, line_at) if b"\n" in chunk else (False, line_at)
            if line_at > command.max_output_bytes or (not is_answered and len(output) > command.max_output_bytes):
                raise _TooMuchError(command.max_output_bytes)
            if is_answered:
                self.is_in_turn = len(output) == line_at
                return bytes(output[:line_at])
        return None

    async def end(self) -> Done:
        """Return how it ended. Raises ``ConnectionError`` when the connection did so first."""
        errors = await self._errors
        await self._process.wait_closed()
        _require_end(self._process)
        return Done(output=bytes(self._output), errors=errors.decode(errors="replace"), code=self._process.exit_status)

    def close(self) -> None:
        """End it, if it has not ended."""
        self._errors.cancel()
        self._process.close()


def _next_answer(output: bytearray, answer: bytes, line_at: int) -> tuple[bool, int]:
    """Return whether a whole line from ``line_at`` on is an answer, and where the line after it, or the last, is."""
    while end := output.find(b"\n", line_at) + 1:
        is_answered = output.startswith(answer, line_at)
        line_at = end
        if is_answered:
            return True, line_at
    return False, line_at


def _require_end(process: Any) -> None:
    if process.exit_status is None and process.exit_signal is None:
        raise ConnectionError("the connection ended before the command did")


async def _run_on(connection: asyncssh.SSHClientConnection, command: Command) -> Done:
    with _RUN:
        process = await connection.create_process(shlex.join(command.argv), encoding=None)
    try:
        _, output, errors = await asyncio.gather(
            _feed(process, command.reads),
            _read(process.stdout, command.max_output_bytes),
            _first(process.stderr, _MAX_STDERR_BYTES),
        )
        await process.wait_closed()
        _require_end(process)
        return Done(output=bytes(output), errors=errors.decode(errors="replace"), code=process.exit_status)
    finally:
        process.close()


async def _feed(process: Any, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it ended early; its output says why
        for start in range(0, len(data), _CHUNK_BYTES):
            process.stdin.write(data[start : start + _CHUNK_BYTES])
            await process.stdin.drain()
        process.stdin.write_eof()


async def _read(stream: Any, max_bytes: int) -> bytearray:
    """Read to the end. Raises ``_TooMuchError`` beyond ``max_bytes``: what more comes is nobody's to keep."""
    read = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        read += chunk
        if len(read) > max_bytes:
            raise _TooMuchError(max_bytes)
    return read


async def _first(stream: Any, max_bytes: int) -> bytearray:
    """Read to the end and keep the first ``max_bytes``."""
    read = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        read += chunk[: max_bytes - len(read)]
    return read


async def _last_words(stream: Any) -> bytes:
    """Read what is written beside the answers; nobody may be there to hear that the connection broke."""
    import asyncssh  # noqa: PLC0415  (only those who have such machines need it)

    with contextlib.suppress(asyncssh.Error, OSError):
        return bytes(await _first(stream, _MAX_STDERR_BYTES))
    return b""


def _said(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:_MAX_SHOWN]


class _Loop:
    """An event loop on a thread of its own, and the connections that live in it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lines: dict[tuple[Machine, Access], _Line] = {}
        self._loop = asyncio.new_event_loop()
        logging.getLogger("asyncssh").setLevel(logging.WARNING)  # it tells of each connection and command otherwise
        threading.Thread(target=self._loop.run_forever, name="llmsched-ssh", daemon=True).start()

    def run(self, work: Any) -> Any:
        """Run a coroutine in the loop and return its result. For any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


_making = threading.Lock()
_made: _Loop | None = None


def _loop() -> _Loop:
    """Return this process's loop: a forked one cannot go on with its parent's."""
    global _made  # noqa: PLW0603  (one per process)
    with _making:
        if _made is None or _made.pid != os.getpid():
            _made = _Loop()
        return _made
