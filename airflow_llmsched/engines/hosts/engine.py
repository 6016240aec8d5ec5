"""The hosts engine: machines reached over SSH, on each of which the agent runs detached from any connection.

What it starts outlives whoever called it. Which attempts there are is on record below ``root``, which all workers and
triggerers of a deployment share; what runs is on the hosts, and only they are believed about it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_llmsched.domain.gang import FoundGang, GangHandle, GangSpec, GangStatus, LaunchRequest
from airflow_llmsched.domain.identity import AttemptKey, NodeId, RunKey
from airflow_llmsched.domain.topology import TopologyNode, TopologyTree
from airflow_llmsched.engines.agent_request import is_attempt_name, key_of, members_on
from airflow_llmsched.engines.divided import divisions, part_words, whole
from airflow_llmsched.engines.hosts import render
from airflow_llmsched.engines.hosts.client import Ask, HostsClient
from airflow_llmsched.engines.hosts.fence import Fence, FenceCommand
from airflow_llmsched.engines.hosts.folders import Folders
from airflow_llmsched.engines.hosts.inventory import Host, parse_hosts
from airflow_llmsched.engines.hosts.launching import Launching
from airflow_llmsched.engines.hosts.ledger import Ledger
from airflow_llmsched.engines.hosts.looking import Looking, parts_of
from airflow_llmsched.engines.hosts.usable import Usable
from airflow_llmsched.engines.hosts.words import Failed, Part, Survey, Unseen, whose_of
from airflow_llmsched.engines.looks import looking
from airflow_llmsched.engines.ssh import Access
from airflow_llmsched.engines.wirings import WiringFiles
from airflow_llmsched.errors import AbandonedError, CapacityError, CouldNotLookError, SpecError
from airflow_llmsched.ports import EngineFeature, LateDuplicateGuard
from airflow_llmsched.topology.links import facts_of, links_of


class HostsEngine:
    """An ``Engine``. Options are JSON-safe and the same in worker and triggerer; secrets are paths of files.

    Args:
        root: folder for the engine's records, seen by every process of the deployment.
        hosts: the machines (see ``inventory.parse_hosts``).
        user: whom to log in as.
        key: path of the private key.
        known_hosts: path of the file with the machines' host keys; one that is not there is not spoken to.
        levels: names of the levels that ``path`` of each host runs through, outermost first.
        scale_up_level: the level whose domains NVLink joins over several hosts; None: it ends with the host.
        switches_reduce: whether the network's switches are set to add up (SHARP).
        network: what the network's levels have, measured or stated (``topology.links``).
        fabric: what the network has as a whole: rails, transport, classes of traffic (``topology.links.facts_of``).
        wirings: by node shape, the path of a file here with what ``nvidia-smi topo -m`` prints on one of them.
        folder: our folder on each host, on a disk of its own; by default ``/var/tmp/llmsched-<user>``.
        python: the trainer's Python on each host, 3.11 or newer.
        code: folders here that are brought to every host of a gang before it starts; ranks import from them.
        silence_limit_s: a host that answers nothing for so long is lost.
        answer_limit_s: how long a host that is there may take to say what is on it.
        peer_limit_s: how long a host may be unseen by the gang's others before they end it; None: the agent's own.
        check_gpus: whether a host must show as many healthy GPUs as it has slots (``nvidia-smi``).
        fence: an argument list, run here without a shell, that exits 0 once ``{host}`` is proven off
            (``engines.hosts.fence``). Only hosts that are not seen, and for which somebody waits, are fenced.
        fence_limit_s: how long that may take.
    """

    name = render.NAME
    features = frozenset({EngineFeature.FREE_CAPACITY})
    late_duplicate_guard = LateDuplicateGuard.ATOMIC_DIRECTORY

    def __init__(
        self,
        *,
        root: str,
        hosts: Sequence[Mapping[str, Any]],
        user: str,
        key: str,
        known_hosts: str,
        levels: Sequence[str] = ("host",),
        scale_up_level: str | None = None,
        switches_reduce: bool = False,
        network: Sequence[Mapping[str, Any]] = (),
        fabric: Mapping[str, Any] | None = None,
        wirings: Mapping[str, str] | None = None,
        folder: str | None = None,
        python: str = "python3",
        code: Sequence[str] = (),
        silence_limit_s: float = 5.0,
        answer_limit_s: float = 20.0,
        peer_limit_s: float | None = None,
        check_gpus: bool = False,
        fence: Sequence[str] | None = None,
        fence_limit_s: float = 60.0,
    ) -> None:
        folder = folder or f"/var/tmp/llmsched-{user}"  # noqa: S108  (INSTALL refuses one that is not the user's alone)
        for name, value in (("root", root), ("folder", folder)):
            if not value.startswith("/"):
                raise SpecError(path=name, value=value, hint="must be an absolute path")
        for name, names in (("levels", levels), ("code", code), ("fence", fence)):
            if isinstance(names, str):  # else taken for a list of its letters, of which "/" is a folder
                raise SpecError(path=name, value=names, hint="must be a list of texts")
        access = Access(user=user, key=key, known_hosts=known_hosts, silence_limit_s=silence_limit_s)
        self._hosts = {host.name: host for host in parse_hosts(hosts, levels=levels)}
        self._network = replace(
            _network(levels, scale_up_level, network, switches_reduce=switches_reduce), facts=facts_of(fabric or {})
        )
        self._wirings = WiringFiles.of(wirings or {})
        self._peer_limit_s = peer_limit_s
        self._answer_limit_s = answer_limit_s
        self._client = HostsClient(access, folder=folder, python=python)
        self._ledger = Ledger(Path(root))
        self._folders = Folders(self._client, folder=folder, folders=tuple(code))
        self._launching = Launching(self._client, self._ledger, self._hosts.get, code=self._folders.bring)
        use_up = partial(self._launching.stop, grace_s=0.0)
        self._looking = Looking(self._client, self._ledger, self._hosts, limit_s=answer_limit_s, use_up=use_up)
        self._usable = Usable(self._looking, self._ledger, check_gpus=check_gpus)
        command = None if fence is None else FenceCommand(argv=tuple(fence), limit_s=fence_limit_s)
        self._fence = Fence(command, self._ledger, hosts=self._hosts)

    @property
    def inventory(self) -> Mapping[NodeId, str]:
        """Where to log in to each host: the same for whoever lists it, by whatever name."""
        return {name: f"{host.machine.address.lower()}:{host.machine.port}" for name, host in self._hosts.items()}

    @property
    def parts(self) -> Mapping[NodeId, str]:
        """How many accelerators each host has, and which of them are divided."""
        return {name: part_words(host.num_slots, host.divided) for name, host in self._hosts.items()}

    def render(self, gang: GangSpec) -> LaunchRequest:
        """Return a printable request. Pure. Raises ``SpecError`` for what this engine cannot launch."""
        return render.render(gang, hosts=tuple(self._hosts.values()), peer_limit_s=self._peer_limit_s)

    def submit(self, request: LaunchRequest, *, key: AttemptKey) -> GangHandle:
        """Start the gang on all of its hosts, or return the handle of the one already started under ``key``.

        Raises ``CapacityError`` (a slot is taken, or a host cannot be used), ``SpecError`` (the hosts do not see the
        channel), ``LaunchError`` (a host did not start, and none has), ``CouldNotLookError``, ``AbandonedError``.
        """
        if request.engine != self.name or request.key != key:
            raise SpecError(
                path="request", value=request.key.name, hint=f"was not rendered by this engine for {key.name}"
            )
        handle = self._handle(key)
        with looking("hosts", "submit"), self._ledger.exclusive():
            if not self._ledger.exists(key.name):
                self._refuse_abandoned(key)
                if not self._usable.admit(request, self._hosts_of(request)):
                    return handle
                if not self._ledger.create(request):
                    self._refuse_abandoned(key)
        with looking("hosts", "launch"):
            self._launching.launch(key.name)
        return handle

    def abandon(self, key: AttemptKey) -> bool:
        """Take the attempt's name, so that a late submit finds it; False when there is a gang of that name already."""
        with looking("hosts", "abandon"):
            return self._ledger.abandon(key.name)

    def find(self, key: RunKey) -> Sequence[GangHandle]:
        """Return every gang of the run, live, ended and abandoned, oldest first. Raises ``CouldNotLookError``.

        Where none is on record, hosts are asked: the records may have been lost, or be another deployment's.
        """
        with looking("hosts", "find"):
            mine = _of(key, self._ledger.names())
            if not mine and self._hosts:
                seen = self._looking.everywhere(all=True).values()
                mine = _of(key, {name for each in seen if isinstance(each, Survey) for name in each.all_names})
        return [self._handle(each) for each in sorted(mine, key=lambda each: (each.generation, each.attempt))]

    def find_all(self) -> Sequence[FoundGang]:
        """Return every gang that has not ended, of whatever deployment, oldest first. Raises ``CouldNotLookError``."""
        now_s = time.time()
        with looking("hosts", "find"):
            recorded = {name for name in self._ledger.names() if not self._ledger.abandoned(name)}
            statuses = self._looking.statuses(sorted(recorded), now_s=now_s)
            ended = {name for name, each in statuses.items() if isinstance(each, GangStatus) and each.phase.ended}
            seen = self._looking.everywhere(all=True)
            surveys = [each for each in seen.values() if isinstance(each, Survey)]
            live = {name for each in surveys for name, is_live in each.all_names.items() if is_live}
            names = sorted((recorded | set(filter(is_attempt_name, live))) - ended)
            seen = self._looking.everywhere(names) if names else {}
            found = [each for name in names if (each := self._found(name, parts_of(name, seen))) is not None]
        return sorted(found, key=lambda gang: (gang.submitted_at_s, gang.handle.native_id))

    def poll(self, handles: Sequence[GangHandle]) -> Mapping[GangHandle, GangStatus]:
        """Return the status of each handle, by one command per host; one that never was is lost.

        A host that does not answer is lost to its gangs. Raises ``CouldNotLookError`` when none answers; a gang that
        alone cannot be judged is left out, unless all are.
        """
        with looking("hosts", "poll"):
            statuses = self._looking.statuses(dict.fromkeys(each.native_id for each in handles), now_s=time.time())
        seen = {each: status for each in handles if isinstance(status := statuses[each.native_id], GangStatus)}
        troubles = [status for status in statuses.values() if not isinstance(status, GangStatus)]
        if troubles and not seen:
            raise troubles[0]
        return seen

    def stop(self, handle: GangHandle, *, grace_s: float) -> None:
        """End every process of the gang on every host that can be reached. Idempotent; never by name or pid.

        What a host that cannot be reached still runs shows in the status (``unconfirmed_nodes``). Raises
        ``CouldNotLookError`` when a host says that something could not be ended.
        """
        name = handle.native_id
        with looking("hosts", "stop"):
            if not is_attempt_name(name) or self._ledger.abandoned(name) or self._ledger.end(name):
                return
            nodes: Sequence[NodeId] = tuple(self._hosts)
            if self._ledger.exists(name):
                self._ledger.note_stop(name, grace_s=grace_s)
                nodes = self._ledger.nodes(name)
            answers = self._launching.stop(name, nodes, grace_s=grace_s)
        failed = [f"host {node}: {each.reason}" for node, each in answers.items() if isinstance(each, Failed)]
        if failed:
            raise CouldNotLookError(f"attempt {name}: {'; '.join(failed)}")

    def fence(self, handle: GangHandle) -> frozenset[NodeId]:
        """Return the nodes of an ended gang on which nothing of it can be alive, as ``ports.FencingEngine`` has it.

        Hosts that are not seen are turned off by the option ``fence``, if it is set. What that proved shows in the
        gang's status from then on. Raises ``CouldNotLookError``.
        """
        name = handle.native_id
        with looking("hosts", "fence"):
            if not is_attempt_name(name) or not self._ledger.exists(name):
                return frozenset()
            return self._looking.confirmed(name, prove=self._fence.prove, now_s=time.time())

    def topology(self) -> TopologyTree:
        """Return the hosts with what is free now; one that cannot be used says why. Raises ``CouldNotLookError``."""
        with looking("hosts", "topology"):
            seen = self._usable.look(tuple(self._hosts.values()))
            wirings = self._wirings.read()
        nodes = tuple(self._topology_node(host, *seen[host.name]) for host in self._hosts.values())
        return replace(self._network, nodes=nodes, wirings=wirings)

    def log_tail(self, handle: GangHandle, *, rank: int, num_lines: int) -> str:
        """Return the last lines a rank wrote; empty when it wrote nothing. Raises ``CouldNotLookError``."""
        return self.log_tails(handle, ranks=[rank], num_lines=num_lines)[rank]

    def log_tails(self, handle: GangHandle, *, ranks: Sequence[int], num_lines: int) -> Mapping[int, str]:
        """Return the last lines of several ranks, by one command on each of their hosts, all at once.

        Raises ``CouldNotLookError`` where a host does not answer.
        """
        name, tails = handle.native_id, dict.fromkeys(ranks, "")
        with looking("hosts", "log_tail"):
            if not is_attempt_name(name) or not self._ledger.exists(name):
                return tails
            asks: dict[Host, Ask] = {}
            for part in self._ledger.request(name)["body"]["nodes"]:
                there = sorted(tails.keys() & set(members_on(part)))
                if there and part["node"] in self._hosts:
                    told = {"name": name, "ranks": there, "num_lines": num_lines}
                    asks[self._hosts[part["node"]]] = Ask(verb="tail", told=told, limit_s=self._answer_limit_s)
            for host, answer in self._client.ask(asks).items():
                if isinstance(answer, Failed | Unseen):
                    raise CouldNotLookError(f"host {host.name}: {answer.reason}")
                tails |= {int(rank): str(text) for rank, text in answer["texts"].items()}
        return tails

    def _handle(self, key: AttemptKey) -> GangHandle:
        return GangHandle(engine=self.name, key=key, native_id=key.name)

    def _hosts_of(self, request: LaunchRequest) -> list[Host]:
        missing = [part["node"] for part in request.body["nodes"] if part["node"] not in self._hosts]
        if missing:
            raise CapacityError(f"host {missing[0]} is no longer among the engine's hosts; plan again")
        return [self._hosts[part["node"]] for part in request.body["nodes"]]

    def _refuse_abandoned(self, key: AttemptKey) -> None:
        if self._ledger.abandoned(key.name):
            raise AbandonedError(
                f"attempt {key.name} was given up before it was submitted: nothing is started; read the run's journal"
            )

    def _found(self, name: str, parts: Mapping[NodeId, Part]) -> FoundGang | None:
        signs_s = [part.node.alive_at_s for part in parts.values() if part.node.alive_at_s is not None]
        whose = whose_of(self._ledger.request(name)) if self._ledger.exists(name) else None
        if whose is None:
            if not parts:
                return None
            whose = next(iter(parts.values())).whose
        return FoundGang(
            handle=self._handle(key_of(name)),
            channel_root=whose.channel_root,
            submitted_at_s=whose.submitted_at_s,
            origin=whose.origin,
            agents_seen_at_s=max(signs_s, default=None),
        )

    def _topology_node(self, host: Host, used: frozenset[int], unusable: str | None) -> TopologyNode:
        free = whole(host.num_slots, host.divided, used)
        return TopologyNode(
            id=host.name,
            path=host.path,
            shape=host.shape,
            num_slots=host.num_slots,
            num_free_slots=len(free),
            unusable_reason=unusable,
            free_slots=free,
            terms=host.terms,
            divisions=divisions(host.divided, used),
        )


def _of(run: RunKey, names: Iterable[str]) -> list[AttemptKey]:
    return [key for key in map(key_of, filter(is_attempt_name, names)) if key.run == run]


def _network(
    levels: Sequence[str], scale_up_level: str | None, network: Sequence[Mapping[str, Any]], *, switches_reduce: bool
) -> TopologyTree:
    """Return the network without its hosts. Raises ``SpecError`` for levels that are not there."""
    try:
        return TopologyTree(
            levels=tuple(levels),
            nodes=(),
            scale_up_level=scale_up_level,
            network=links_of(network),
            switches_reduce=switches_reduce,
        )
    except ValueError as error:
        raise SpecError(path="levels", value=list(levels), hint=str(error)) from error
