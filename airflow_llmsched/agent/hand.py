"""What mpirun runs in ssh's place: hands the command of a daemon to the supervisor of the node it is for.

``python -m airflow_llmsched.agent.hand HOST COMMAND...`` leaves the command where the first node's supervisor finds it,
and is done: the daemon reports to mpirun by itself, and its end is its supervisor's to see.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.launchers.mpirun import DAEMON
from airflow_llmsched.agent.say import say
from airflow_llmsched.agent.spool import write_json


def daemon_argv(words: Sequence[str]) -> list[str]:
    """Return a daemon's argument list from what mpirun would have a remote shell run. Raises ``ValueError``.

    The words are quoted for a shell, and settings of paths may stand before the daemon (mpirun's ``--prefix``): those
    are its node's own.
    """
    argv = shlex.split(" ".join(words))
    for position, word in enumerate(argv):
        if Path(word).name == DAEMON:
            return argv[position:]
    raise ValueError(f"found no {DAEMON} in what mpirun asked for")


def main(argv: Sequence[str]) -> int:
    """Hand over ``argv[1:]`` for the host ``argv[0]``."""
    if len(argv) < 2 or "/" in argv[0] or wire.SPOOL not in os.environ:
        say("usage, by mpirun within a gang: python -m airflow_llmsched.agent.hand HOST COMMAND...")
        return 2
    try:
        asked = {"v": wire.VERSION, "argv": daemon_argv(argv[1:])}
    except ValueError as error:
        say(f"llmsched: {error}")
        return 1
    folder = Path(os.environ[wire.SPOOL]).parent / wire.DAEMONS
    folder.mkdir(mode=0o700, exist_ok=True)
    write_json(folder / f"{argv[0]}.json", asked)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
