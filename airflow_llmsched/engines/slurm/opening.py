"""Makes a Slurm engine of plain options: the entry point ``slurm``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from airflow_llmsched.agent.shelf import Shelf as Files
from airflow_llmsched.engines.slurm.client import SlurmCli, SlurmClient
from airflow_llmsched.engines.slurm.engine import SlurmEngine
from airflow_llmsched.engines.slurm.options import SlurmOptions
from airflow_llmsched.engines.slurm.records import ENVIRONMENT
from airflow_llmsched.engines.slurm.rest_client import RestAccess, RestClient, TokenFile, TokenSource
from airflow_llmsched.engines.slurm.runner import LocalRunner, Runner
from airflow_llmsched.engines.slurm.shelf import RemoteShelf, Shelf
from airflow_llmsched.engines.slurm.ssh_runner import SshRunner
from airflow_llmsched.engines.ssh import Access, Machine
from airflow_llmsched.errors import SpecError

T = TypeVar("T")

_LOGIN = ("address", "port", "user", "key", "known_hosts", "silence_limit_s", "max_sessions")


def open_slurm(
    *,
    root: str,
    python: str = sys.executable,
    slurm_conf: str | None = None,
    completion_file: str | None = None,
    ssh: Mapping[str, Any] | None = None,
    rest: Mapping[str, Any] | None = None,
    topology_file: str | None = None,
    token: TokenSource | None = None,
    **options: Any,
) -> SlurmEngine:
    """Return an engine that runs Slurm's commands on this machine, which also sees the cluster's shared files.

    With ``ssh`` commands run and files are read on a login node instead. With ``rest`` Slurm is asked through
    slurmrestd; files are then read here, or on the login node that ``ssh`` names as well.

    Args:
        root: A folder on the cluster's shared file system, the same path everywhere.
        python: What runs our agent on the nodes, and on a login node: this process's own unless they have another.
        slurm_conf: The cluster's configuration, where it is not in its usual place.
        completion_file: The job completion file (JobCompLoc), where there is one and no accounting.
        ssh: ``address``, ``user``, ``key`` and ``known_hosts`` (paths), and maybe ``port``, ``silence_limit_s`` and
            ``max_sessions``: see ``engines.ssh``.
        rest: ``url``, ``user`` and ``token_file``, and what else ``RestAccess`` has.
        token: Where the token is kept, if not in ``token_file``; the one argument that is not plain.
        topology_file: A copy of topology.conf or topology.yaml, for ``rest``.
        options: See ``SlurmOptions``.

    Raises ``SpecError``.
    """
    checked = SlurmOptions.from_json({"root": root, "python": python, **options})
    environment = dict(ENVIRONMENT) if slurm_conf is None else {**ENVIRONMENT, "SLURM_CONF": slurm_conf}
    runner: Runner = LocalRunner(environment=environment)
    shelf: Shelf = Files(Path(root))
    if ssh is not None:
        runner = _over_ssh(ssh, environment)
        shelf = RemoteShelf(runner=runner, python=python, root=root)
    client: SlurmClient = SlurmCli(runner=runner, cluster=checked.cluster, completion_file=completion_file)
    if rest is not None:
        client = _rest_client(rest, token, topology_file)
    return SlurmEngine(options=checked, client=client, shelf=shelf)


def _rest_client(rest: Mapping[str, Any], token: TokenSource | None, network_file: str | None) -> RestClient:
    access = {name: value for name, value in rest.items() if name != "token_file"}
    file = rest.get("token_file")
    if token is None and not isinstance(file, str):
        raise SpecError(path="rest.token_file", value=file, hint="must be the path of a 0600 file with a token")
    return RestClient(
        access=_made(RestAccess, access, path="rest"),
        token=token if token is not None else TokenFile(str(file)),
        network_file=network_file,
    )


def _over_ssh(ssh: Mapping[str, Any], environment: Mapping[str, str]) -> Runner:
    odd = sorted(set(ssh) - set(_LOGIN))
    if odd:
        raise SpecError(path=f"ssh.{odd[0]}", hint=f"is not understood: a login has {', '.join(_LOGIN)}")
    access = {name: value for name, value in ssh.items() if name not in ("address", "port")}
    where = {"name": ssh.get("address"), **{name: ssh[name] for name in ("address", "port") if name in ssh}}
    machine = _made(Machine, where, path="ssh")
    return SshRunner(machine=machine, access=_made(Access, access, path="ssh"), environment=environment)


def _made(kind: type[T], values: Mapping[str, Any], *, path: str) -> T:
    try:
        return kind(**values)
    except (TypeError, AttributeError) as error:
        raise SpecError(
            path=path, value=sorted(values), hint=f"is not complete, or has more than it may: {error}"
        ) from error
