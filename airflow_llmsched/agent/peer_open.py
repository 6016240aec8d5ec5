"""Which ``Peers`` a node has, what it must hold for them before it claims its node, and where others find that.

Nodes that have addresses are machines of their own and talk. A guest finds the first node by what the engine wrote
into go.json (``peers``: host and port), or, where the nodes share a file system, by the first node's claim. The token
is the engine's to hand out; where it did not, the first node makes one, for which the others wait.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_llmsched.agent import wire
from airflow_llmsched.agent.gangdir import GangDir
from airflow_llmsched.agent.launchers.ports import address_of, num_ports
from airflow_llmsched.agent.meeting import Meeting, hold, hold_ports
from airflow_llmsched.agent.peer_guest import HostAddress, PeerGuest
from airflow_llmsched.agent.peer_host import PeerHost
from airflow_llmsched.agent.peer_talk import PEER_LIMIT_S
from airflow_llmsched.agent.peers import FilePeers, Peers
from airflow_llmsched.agent.spool import create_json, read_json

_TOKEN_BYTES = 32


class Held(NamedTuple):
    """What a node holds: the port its gang's ranks meet at, and the socket that the other supervisors will call.

    ``ports`` are for members of the node that others reach by themselves.
    """

    port: int | None = None
    listener: socket.socket | None = None
    ports: Sequence[int] = ()

    @property
    def peers_port(self) -> int | None:
        """The port that other supervisors call, or None."""
        return None if self.listener is None else int(self.listener.getsockname()[1])


def are_machines(body: Mapping[str, Any]) -> bool:
    """Whether the gang's nodes are machines of their own: then others reach them by an address."""
    return "address" in body["nodes"][0]


def new_token() -> str:
    """Return a token for a gang's supervisors to know one another by."""
    return secrets.token_hex(_TOKEN_BYTES)


@contextlib.contextmanager
def holding(gang: GangDir, body: Mapping[str, Any], *, node: str) -> Iterator[Held]:
    """Hold what the first node needs to be found, and what each node's members need. Raises ``OSError``."""
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(hold_ports(num_ports(body, node=node)))
        if node != body["nodes"][0]["node"]:
            yield Held(ports=ports)
            return
        meeting = stack.enter_context(hold())
        listener = None
        if are_machines(body):
            create_json(gang.token, {"v": wire.VERSION, "token": new_token()})
            listener = stack.enter_context(hold())
        yield Held(port=meeting.getsockname()[1], listener=listener, ports=ports)


def join(gang: GangDir, body: Mapping[str, Any], *, node: str, held: Held, wake: Callable[[], None]) -> Peers:
    """Return the node's ``Peers``. Raises ``OSError`` or ``ValueError``."""
    nodes = [each["node"] for each in body["nodes"]]
    addresses = {name: address_of(body, index) for index, name in enumerate(nodes)}
    helper_nodes = frozenset(each["node"] for each in body["nodes"] if not each.get("ranks", True))
    if not are_machines(body):
        return FilePeers(gang, nodes=nodes, node=node, address=addresses[node], helper_nodes=helper_nodes)
    files = FilePeers(gang, nodes=[node], node=node, address=addresses[node])
    limit_s = float(body.get("peer_limit_s") or PEER_LIMIT_S)
    name = body["attempt_name"]
    address = body["nodes"][0]["address"]
    if held.listener is None or held.port is None:
        return PeerGuest(
            files,
            gang=name,
            host=nodes[0],
            find=lambda: _host_address(gang, nodes[0], address),
            ports=held.ports,
            limit_s=limit_s,
            wake=wake,
        )
    token = _token(gang)
    assert token is not None
    return PeerHost(
        files,
        gang=name,
        token=token,
        guests=nodes[1:],
        addresses=addresses,
        helper_nodes=helper_nodes,
        ports=held.ports,
        meeting=Meeting(address, held.port),
        listener=held.listener,
        limit_s=limit_s,
        wake=wake,
    )


def _host_address(gang: GangDir, host: str, address: str) -> HostAddress | None:
    token = _token(gang)
    if token is None:
        return None
    told = (read_json(gang.go) or {}).get("peers")
    if told is not None:
        return HostAddress(str(told["host"]), int(told["port"]), token)
    port = gang.node(host).peers_port()
    return None if port is None else HostAddress(address, port, token)


def _token(gang: GangDir) -> bytes | None:
    plain = read_json(gang.token)
    return None if plain is None else bytes.fromhex(plain["token"])
