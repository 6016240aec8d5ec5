"""Eight machines or more with a real sshd each, on a bridge of their own: what a lease of plain VMs looks like.

Each has its own network, processes, boot id, host key and disk (``SshHosts.disk``); everything else of this machine's
file system they share, as hosts with a network file system do. One can be cut off, rebooted and given another key.
Needs root, as whoever makes network namespaces does.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

_INIT = Path(__file__).with_name("ssh_host_init.py")
_POWER_OFF = Path(__file__).with_name("power_off.py")
_UP_LIMIT_S = 60.0
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""A test run that is killed takes its machines along, though not their empty network namespaces."""
_CONFIG = """\
Port 22
ListenAddress 0.0.0.0
HostKey {key}
HostCertificate {key}-cert.pub
AuthorizedKeysFile {authorized}
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
PidFile none
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHost:
    """One machine. ``link`` is this machine's end of its cable."""

    name: str
    address: str
    link: str
    space: str


class SshHosts:
    """Machines h1, h2, ... below ``root``."""

    def __init__(self, root: Path, *, num_hosts: int = 8) -> None:
        self.root = root
        tag = secrets.token_hex(3)
        self._bridge = f"lsbr{tag}"
        self._network = _free_network()
        self.gateway = str(self._network[1])
        """Where the machines reach this one."""
        self.hosts = tuple(
            SshHost(
                name=f"h{index}",
                address=str(self._network[index + 1]),
                link=f"ls{tag}{index}",
                space=f"ls{tag}-{index}",
            )
            for index in range(1, num_hosts + 1)
        )
        self.disk = root / "disk"
        """Path of a machine's own disk, on that machine."""
        self.key = root / "keys" / "user"
        self.known_hosts = root / "keys" / "known_hosts"
        self.authority = root / "keys" / "authority"
        """Key that signs every machine's host key, as an image's maker does for all machines of the image."""
        self._boots: dict[str, subprocess.Popen[bytes]] = {}
        self._made: list[list[str]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all machines."""
        return tuple(host.name for host in self.hosts)

    def host(self, name: str) -> SshHost:
        """Return one machine."""
        return next(host for host in self.hosts if host.name == name)

    def disk_of(self, name: str) -> Path:
        """Return a machine's own disk as seen from here."""
        return self.root / "disks" / name

    def options(self, names: Sequence[str] | None = None, *, slots: int = 2) -> list[dict[str, Any]]:
        """Return the engine's list of (some of) these hosts."""
        return [
            {"name": host.name, "address": host.address, "slots": slots}
            for host in self.hosts
            if names is None or host.name in names
        ]

    def start(self) -> None:
        """Lay the cables, make the keys, boot all; return once every sshd answers."""
        for folder in ("keys", "logs", "disks", "disk", "boots", "power"):
            (self.root / folder).mkdir(parents=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd keeps those apart that have not logged in yet
        self._keygen(self.key)
        self._keygen(self.authority)
        self._make(["ip", "link", "add", self._bridge, "type", "bridge"], undo=["ip", "link", "del", self._bridge])
        _run("ip", "addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for host in self.hosts:
            self._plug_in(host)
            self.disk_of(host.name).mkdir()
            self.new_host_key(host.name)
            self._boot(host)
        self.trust()
        for host in self.hosts:
            wait_until(lambda host=host: _answers(host.address), _UP_LIMIT_S)

    def stop(self) -> None:
        """End everything of every machine, and remove the cables."""
        for boot in self._boots.values():
            _kill(boot)
        for undo in reversed(self._made):
            subprocess.run(undo, check=False, capture_output=True)

    def cut_off(self, name: str) -> None:
        """Pull a machine's cable: what is sent to or by it is gone, and nobody is told."""
        _run("ip", "link", "set", self.host(name).link, "down")

    def join_again(self, name: str) -> None:
        """Put it back."""
        _run("ip", "link", "set", self.host(name).link, "up")

    @property
    def fence(self) -> list[str]:
        """The option ``fence`` of an engine with these machines: each has a power button that needs no network."""
        return [sys.executable, "-I", "-S", str(_POWER_OFF), str(self.root), "{host}"]

    def power_off(self, name: str) -> None:
        """End all processes of a machine at once; silent for one that is off."""
        boot = self._boots.pop(name, None)
        if boot is not None:
            _kill(boot)

    def is_on(self, name: str) -> bool:
        """Whether nobody has turned a machine off from here."""
        return name in self._boots

    def reboot(self, name: str) -> None:
        """End all processes of a machine at once, and start it anew; its disk stays."""
        self.power_off(name)
        self.power_on(name)

    def power_on(self, name: str) -> None:
        """Start a machine that was powered off; return once its sshd answers."""
        self._boot(self.host(name))
        wait_until(lambda: _answers(self.host(name).address), _UP_LIMIT_S)

    def new_host_key(self, name: str) -> None:
        """Give a machine another host key, from its next boot on."""
        path = self.root / "keys" / name
        path.unlink(missing_ok=True)
        self._keygen(path)
        _run("ssh-keygen", "-q", "-s", str(self.authority), "-I", name, "-h", f"{path}.pub")

    def trust(self) -> None:
        """Write the present host keys down as known."""
        lines = [
            f"{host.address} {' '.join((self.root / 'keys' / f'{host.name}.pub').read_text().split()[:2])}\n"
            for host in self.hosts
        ]
        self.known_hosts.write_text("".join(lines))

    def run(self, name: str, *argv: str) -> str:
        """Run a command on a machine, in its own namespaces, and return what it wrote."""
        target = str(_child_of(self._boots[name].pid))
        return _run("nsenter", "-t", target, "-n", "-m", "-p", *argv)

    def process_ids(self, name: str) -> list[int]:
        """Return the ids, as seen from here, of all processes of a machine but its first and its sshd's."""
        space = Path(f"/proc/{_child_of(self._boots[name].pid)}/ns/pid").stat().st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                argv = (path / "cmdline").read_bytes()
                if (
                    (path / "ns" / "pid").stat().st_ino == space
                    and b"sshd" not in argv
                    and _INIT.name.encode() not in argv
                ):
                    found.append(int(path.name))
        return found

    def _plug_in(self, host: SshHost) -> None:
        self._make(["ip", "netns", "add", host.space], undo=["ip", "netns", "del", host.space])
        peer = ["type", "veth", "peer", "name", "eth0", "netns", host.space]
        self._make(["ip", "link", "add", host.link, *peer], undo=["ip", "link", "del", host.link])
        _run("ip", "link", "set", host.link, "master", self._bridge, "up")
        _run("ip", "-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _run("ip", "-n", host.space, "link", "set", "eth0", "up")

    def _boot(self, host: SshHost) -> None:
        boot_id = self.root / "boots" / f"{host.name}-{uuid.uuid4()}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        config = self.root / "keys" / f"{host.name}.conf"
        authorized = self.key.with_suffix(".pub")
        config.write_text(_CONFIG.format(key=self.root / "keys" / host.name, authorized=authorized))
        told = {
            "mounts": [
                [str(self.disk_of(host.name)), str(self.disk)],
                [str(boot_id), "/proc/sys/kernel/random/boot_id"],
            ],
            "config": str(config),
            "log": str(self.root / "logs" / f"{host.name}.log"),
        }
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        init = [sys.executable, "-I", "-S", str(_INIT), json.dumps(told)]
        with (self.root / "logs" / f"{host.name}.log").open("ab") as log:
            self._boots[host.name] = subprocess.Popen(
                [*_WITH_US, "ip", "netns", "exec", host.space, *namespaces, *init],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        (self.root / "power" / host.name).write_text(str(self._boots[host.name].pid))

    def _keygen(self, path: Path) -> None:
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path))

    def _make(self, command: Sequence[str], *, undo: list[str]) -> None:
        _run(*command)
        self._made.append(undo)


@contextlib.contextmanager
def ssh_hosts(*, num_hosts: int = 8) -> Iterator[SshHosts]:
    """Machines in a folder of their own; nothing of them is left."""
    root = Path(tempfile.mkdtemp(prefix="llmsched-hosts-"))
    hosts = SshHosts(root, num_hosts=num_hosts)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.stop()
        shutil.rmtree(root, ignore_errors=True)


def _free_network() -> ipaddress.IPv4Network:
    """Return a network that nobody here has; chosen at random, as several test runs look at once."""
    shown = _run("ip", "-o", "-4", "addr", "show")
    taken = [ipaddress.ip_interface(line.split()[3]).network for line in shown.splitlines()]
    while True:
        network = ipaddress.IPv4Network(f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(256)}.0/24")
        if not any(network.overlaps(each) for each in taken):  # type: ignore[arg-type]  # all are of version 4
            return network


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _child_of(pid: int) -> int:
    """Return process 1 of a machine, by its id here."""
    found = wait_until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), _UP_LIMIT_S)
    return int(found[0])


def _kill(boot: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(AssertionError, OSError):
        os.kill(_child_of(boot.pid), 9)
    boot.kill()
    boot.wait()


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")
    return done.stdout
