"""Links as they were measured, in place of what a tree claims: nccl-tests' output, and our own checks of nodes. Pure.

Both tell a bus bandwidth. Of collectives that go round a ring (all-reduce, all-gather, reduce-scatter) that is what one
node sends to the next over all of its cards together, so that each of its accelerators has its share of it; of an
all-to-all it is what each accelerator sends, of which only a part leaves the node (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import CheckOutcome, PreflightRecord, PreflightRound
from airflow_llmsched.domain.topology import NetworkLevel, TopologyTree
from airflow_llmsched.topology.reading import Oddities, Reading, bounded, quoted, refusal, short_name
from airflow_llmsched.units import MIB

MIN_BYTES = 64 * MIB
"""Shorter collectives measure how fast one begins, not how much fits through."""

COLLECTIVE_CHECK = "collective"
"""Name of the check in which all ranks of a gang add a buffer up."""

_SOURCE = "nccl-tests"
_RINGS = frozenset(("all_reduce_perf", "all_gather_perf", "reduce_scatter_perf"))
_ALL_TO_ALL = "alltoall_perf"
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_RANK = re.compile(r"#\s*Rank\s+([0-9]{1,7})\s+(?:Group\s+[0-9]+\s+)?Pid\s+[0-9]+\s+on\s+(\S+)\s+device\s+[0-9]+.*")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_TOLD = re.compile(r"([0-9]{1,18}) bytes over ([0-9]{1,7}) ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What each accelerator of ``nodes`` could send to other nodes while all did. ``num_bytes`` is what was moved.

    ``num_ranks`` are the accelerators that did, as many on each node.
    """

    nodes: frozenset[NodeId]
    bytes_per_s: float
    num_bytes: int
    num_ranks: int


def read_nccl_tests(text: str) -> Measurement:
    """Return what one run of nccl-tests measured, in its largest buffer.

    Raises ``DataError`` with the line for wrong results, and for collectives that tell nothing of links.
    """
    ranks: dict[str, str] = {}
    collective = ""
    rates: dict[int, float] = {}
    for number, line in enumerate(map(str.strip, bounded(text, source=_SOURCE).splitlines()), start=1):
        where = f"{_SOURCE}: line {number}"
        if starting := _STARTING.fullmatch(line):
            collective = starting[1]
        elif rank := _RANK.fullmatch(line):
            if rank[1] in ranks:
                hint = "Was nccl-tests built without MPI? Build it with MPI=1"
                raise refusal(where, f"rank {rank[1]} is there twice", hint=hint)
            ranks[rank[1]] = rank[2]
        elif line[:1].isdigit() and (row := _row(line.split(), where)):
            size, rate, is_summed = row
            collective = collective or ("all_reduce_perf" if is_summed else "")
            rates[size] = max(rate, rates.get(size, 0.0))
    if not ranks or not rates:
        raise refusal(_SOURCE, "shows no ranks, or no results", hint="Hand over all that it printed")
    return Measurement(
        nodes=frozenset(map(NodeId, ranks.values())),
        bytes_per_s=_leaving(collective, list(ranks.values()), rates[max(rates)] * 1e9),
        num_bytes=max(rates),
        num_ranks=len(ranks),
    )


def read_preflight(record: PreflightRecord, odd: Oddities) -> list[Measurement]:
    """Return what the gangs of checks measured, one round after the other; those too short to tell are counted."""
    found = (read_round(each) for each in record.rounds)
    measured = [each for each in found if each is not None]
    odd.note("round of checks that measured no links", len(record.rounds) - len(measured))
    return measured


def read_round(each: PreflightRound) -> Measurement | None:
    """Return what one gang of checks measured, None if that says nothing of links."""
    told = {
        checked.node: check
        for checked in each.nodes
        for check in checked.checks
        if check.name == COLLECTIVE_CHECK and check.outcome is CheckOutcome.OK and 0 < (check.value or 0.0) < math.inf
    }
    size = next((_TOLD.fullmatch(check.detail) for check in told.values()), None)
    if size is None or len(told) < len(each.nodes) or int(size[2]) < len(told):
        return None
    num_ranks = int(size[2])
    slowest = min(check.value or 0.0 for check in told.values())
    return Measurement(
        nodes=frozenset(told),
        bytes_per_s=slowest * len(told) / num_ranks,
        num_bytes=int(size[1]),
        num_ranks=num_ranks,
    )


def with_measured(tree: TopologyTree, measurements: Iterable[Measurement]) -> Reading:
    """Return the tree with what was measured in place of what it claims.

    A measurement is of the innermost level that holds all of its nodes in one domain. Of several of one level the
    lowest counts: a plan must hold on every domain of it.
    """
    odd = Oddities()
    lowest: dict[str | None, float] = {}
    for each in measurements:
        for level in level_of(each, tree, odd):
            lowest[level] = min(each.bytes_per_s, lowest.get(level, math.inf))
    measured = [
        NetworkLevel(level=level, bandwidth_bytes_per_s=rate, is_measured=True) for level, rate in lowest.items()
    ]
    return Reading(tree=overridden(tree, measured), warnings=odd.counted())


def level_of(each: Measurement, tree: TopologyTree, odd: Oddities) -> Iterator[str | None]:
    """Yield the level whose links were measured, if it is one of the tree's network; else count why not."""
    paths = {node.id: node.path for node in tree.nodes}
    short = {short_name(node.id): node.path for node in tree.nodes}  # nccl-tests leaves the domain out
    if each.num_bytes < MIN_BYTES:
        odd.note("measurement with buffers below 64 MiB, which does not count")
        return
    if len(each.nodes) < 2:
        odd.note("measurement within one node, which does not count")
        return
    found = [paths.get(node) or short.get(short_name(node)) for node in each.nodes]
    if None in found:
        odd.note("measurement with nodes that the topology does not have")
        return
    shared = sum(len({path[:depth] for path in found if path}) == 1 for depth in range(1, len(tree.levels) + 1))
    level = tree.levels[shared - 1] if shared else None
    if tree.scale_up_level is not None and shared > tree.levels.index(tree.scale_up_level):
        odd.note("measurement within one domain of the fastest links, which are not the network's")
        return
    yield level


def overridden(tree: TopologyTree, links: Iterable[NetworkLevel]) -> TopologyTree:
    """Return the tree with ``links``, one of a level, in place of what it claims of theirs."""
    told = {each.level: each for each in (*tree.network, *links)}
    return replace(tree, network=tuple(told[level] for level in (None, *tree.levels) if level in told))


def _row(words: Sequence[str], where: str) -> tuple[int, float, bool] | None:
    """Return size, bus bandwidth in GB/s, and whether ranks added up; None for a line that is no result."""
    if len(words) < 12 or not re.fullmatch(r"[0-9]{1,15}", words[0]):
        return None
    *_, out_of_place, its_wrong, _time, _algorithm, in_place, wrong = words
    for word in (its_wrong, wrong):
        if re.fullmatch(r"[1-9][0-9]*", word):
            raise refusal(where, f"{word} values are wrong", hint="Repair the nodes before measuring them")
    rates = [float(word) for word in (out_of_place, in_place) if _NUMBER.fullmatch(word)]
    return (int(words[0]), max(rates), words[3] not in {"none", "-1"}) if rates else None


def _leaving(collective: str, ranks: Sequence[str], bus_bytes_per_s: float) -> float:
    """Return what each accelerator sends to other nodes, of a collective's bus bandwidth."""
    per_node = Counter(ranks)
    if len(set(per_node.values())) > 1:
        raise refusal(_SOURCE, "ran on nodes with unlike numbers of ranks", hint="Start as many ranks on each")
    num_ranks, num_local = len(ranks), next(iter(per_node.values()))
    if collective in _RINGS:
        rate = bus_bytes_per_s / num_local
    elif collective == _ALL_TO_ALL and num_ranks > 1:
        rate = bus_bytes_per_s * (num_ranks - num_local) / (num_ranks - 1)
    else:
        hint = f"Measure with {', '.join(sorted(_RINGS))} or {_ALL_TO_ALL}, of a version that prints which"
        raise refusal(_SOURCE, f"{quoted(collective)} tells nothing of each link", hint=hint)
    if rate <= 0 and len(per_node) > 1:
        raise refusal(_SOURCE, "measured nothing", hint="Use larger buffers: -b 64M -e 1G")
    return rate
