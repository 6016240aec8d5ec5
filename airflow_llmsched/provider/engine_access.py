"""Signs engines in with an Airflow connection: an adapter gets addresses, users and the paths of keys, never a secret.

A token for slurmrestd is the connection's password. It is read for each call, in the process that makes it, so that it
can be renewed there; it is in no option, and travels with no trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_llmsched.errors import CouldNotLookError, SpecError

CONNECTION = "conn_id"
"""The option that names an Airflow connection. It is resolved here, and no adapter sees it."""


def with_access(engine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the adapter ``engine`` is opened with: ``options``, and what its connection says beside them.

    What an option says itself holds against the connection. Raises ``SpecError``, and ``CouldNotLookError`` when the
    connection is not defined or cannot be read: Airflow does not tell the two apart.
    """
    given = {name: value for name, value in options.items() if name != CONNECTION}
    conn_id = options.get(CONNECTION)
    if conn_id is None:
        return given
    if engine not in _ACCESS:
        raise SpecError(path=CONNECTION, value=conn_id, hint=f"engine {engine!r} takes no Airflow connection")
    found = _ACCESS[engine](connection_of(str(conn_id)))
    for name, value in found.items():
        mine = given.get(name)
        given[name] = {**value, **mine} if isinstance(value, dict) and isinstance(mine, Mapping) else mine or value
    return given


def connection_of(conn_id: str) -> Any:
    """Return an Airflow connection. Raises ``CouldNotLookError``."""
    from airflow.sdk import Connection  # noqa: PLC0415 - slow
    from airflow.sdk.exceptions import AirflowNotFoundException  # noqa: PLC0415 - slow

    try:
        return Connection.get(conn_id)
    except AirflowNotFoundException as error:
        told = f"the Airflow connection {conn_id!r} is not defined, or could not be read"
        raise CouldNotLookError(f"{told}: define it, or wait until whoever keeps it answers") from error


class ConnectionToken:
    """The password of an Airflow connection, as ``engines.slurm.rest_client.TokenSource``."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self.where = f"the Airflow connection {conn_id}"

    def read(self) -> str:
        """Return the password as it is now; empty where there is none."""
        return str(connection_of(self._conn_id).password or "")


def _slurm(connection: Any) -> dict[str, Any]:
    if connection.conn_type == "ssh":
        return {"ssh": {"address": _host(connection), "port": connection.port or 22, **_login(connection)}}
    if connection.conn_type in ("http", "https", "slurm"):
        extra = _extra(connection, ("version", "ca_file", "allows_plain_http"))
        rest = {"url": _url(connection), "user": _user(connection), **extra}
        return {"rest": rest, "token": ConnectionToken(connection.conn_id)}
    hint = f"is of type {connection.conn_type!r}: Slurm is signed in to with one of type ssh, or http for slurmrestd"
    raise SpecError(path=CONNECTION, value=connection.conn_id, hint=hint)


def _hosts(connection: Any) -> dict[str, Any]:
    if connection.conn_type != "ssh":
        hint = f"is of type {connection.conn_type!r}: hosts are signed in to with one of type ssh"
        raise SpecError(path=CONNECTION, value=connection.conn_id, hint=hint)
    return _login(connection)


_ACCESS: Mapping[str, Callable[[Any], dict[str, Any]]] = {"slurm": _slurm, "hosts": _hosts}


def _login(connection: Any) -> dict[str, Any]:
    """Return user, key and known hosts, as paths that every worker and triggerer must have."""
    extra = connection.extra_dejson
    if extra.get("no_host_key_check") in (True, "true", "True"):
        raise SpecError(
            path=CONNECTION,
            value=connection.conn_id,
            hint="says no_host_key_check: host keys are checked here; name their file in the extra known_hosts",
        )
    for name in ("key_file", "known_hosts"):
        if not str(extra.get(name) or "").startswith("/"):
            hint = f"needs the extra {name}: an absolute path on every worker and triggerer"
            raise SpecError(path=CONNECTION, value=connection.conn_id, hint=hint)
    return {"user": _user(connection), "key": extra["key_file"], "known_hosts": extra["known_hosts"]}


def _extra(connection: Any, names: tuple[str, ...]) -> dict[str, Any]:
    extra = connection.extra_dejson
    return {name: extra[name] for name in names if name in extra}


def _url(connection: Any) -> str:
    """Return the address of slurmrestd; TLS unless the connection says http."""
    host, scheme = _host(connection), connection.schema or "https"
    if "://" in host:
        return f"{host}:{connection.port}" if connection.port else str(host)
    return f"{scheme}://{host}:{connection.port}" if connection.port else f"{scheme}://{host}"


def _host(connection: Any) -> str:
    if not connection.host:
        raise SpecError(path=CONNECTION, value=connection.conn_id, hint="names no host")
    return str(connection.host)


def _user(connection: Any) -> str:
    if not connection.login:
        raise SpecError(path=CONNECTION, value=connection.conn_id, hint="names no login")
    return str(connection.login)
