"""A real sshd on loopback: the login node of a cluster whose commands are on this machine."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.engines.ssh import Access, Machine
from tests.support.waiting import wait_until

_UP_LIMIT_S = 60.0
_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {root}/host
AuthorizedKeysFile {root}/user.pub
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
{environment}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginNode:
    """Where to log in, and how."""

    machine: Machine
    access: Access


@contextlib.contextmanager
def login_node(environment: Mapping[str, str]) -> Iterator[LoginNode]:
    """Run sshd for the length of the block; whoever logs in has ``environment``, as a site's profile would set it."""
    root = Path(tempfile.mkdtemp(prefix="llmsched-login-"))
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)], check=True)
    port = _free_port()
    setting = " ".join(f'"{name}={value}"' for name, value in environment.items())
    config = root / "sshd_config"
    config.write_text(_CONFIG.format(root=root, port=port, environment=f"SetEnv {setting}" if setting else ""))
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it to be there
    with (root / "log").open("wb") as log:
        daemon = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=log)
    try:
        wait_until(lambda: _answers(port) or daemon.poll() is not None, _UP_LIMIT_S)
        assert daemon.poll() is None, (root / "log").read_text()
        known = root / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {' '.join((root / 'host.pub').read_text().split()[:2])}\n")
        yield LoginNode(
            machine=Machine(name="login", address="127.0.0.1", port=port),
            access=Access(user=getpass.getuser(), key=str(root / "user"), known_hosts=str(known), silence_limit_s=30.0),
        )
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)
        shutil.rmtree(root)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
