"""From cables to levels: who shares leaves, who reaches one another over spines, and how much fits through. Pure.

The level ``leaf`` holds hosts that hang on the same leaf switches: on one, or on eight where each card of a host has a
rail of its own. ``spine``, ``core`` and ``tier4`` hold hosts that reach one another over switches no higher than that.
A switch is the higher, the farther it is from the leaves. Levels that join nothing more are left out.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_llmsched.domain.topology import NetworkFacts, NetworkLevel
from airflow_llmsched.topology.cabling import Cabling
from airflow_llmsched.topology.reading import Network, Oddities, refusal

_NAMES = ("leaf", "spine", "core")
_JOINT = "+"
_FEW_RATIO = 0.1
"""A switch with fewer cards than this share of the busiest one's may be no leaf: managers hang anywhere."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """Switches and hosts. ``trunks`` are rates between two switches, ``drops`` between a host and a switch."""

    hosts: tuple[str, ...]
    switch_names: Mapping[str, str]
    neighbours: Mapping[str, frozenset[str]]
    trunks: Sequence[tuple[str, str, float | None]]
    drops: Sequence[tuple[str, str, float | None]]


@dataclass(frozen=True, slots=True)
class _Tier:
    """One level: its domains by the GUID of a switch in each, or of several."""

    name: str
    of_host: Mapping[str, str]
    of_switch: Mapping[str, str]

    @property
    def num_domains(self) -> int:
        return len(set(self.of_host.values()))


class _Sets:
    """Sets that are joined, and asked whether two things are in one (union-find)."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def root(self, thing: Hashable) -> Hashable:
        path = []
        while (above := self._above.get(thing, thing)) != thing:
            path.append(thing)
            thing = above
        self._above.update(dict.fromkeys(path, thing))
        return thing

    def join(self, one: Hashable, other: Hashable) -> None:
        self._above[self.root(one)] = self.root(other)


def network_of(cabling: Cabling, *, num_slots: int) -> Network:
    """Return the hosts' paths, and the bandwidth of each level for ``num_slots`` accelerators a host.

    Raises ``DataError`` where there is no host on a switch.
    """
    graph = _graph(cabling)
    if not graph.drops:
        raise refusal(cabling.source, "has no host on a switch", hint="Discover the fabric with its cards")
    leaves_of = _leaves(graph, cabling)
    heights = _heights(graph)
    tiers = [_by_leaves(leaves_of)]
    for height in range(1, max(heights.values()) + 1):
        tier = _joined(graph, leaves_of, {each: its for each, its in heights.items() if its <= height}, height)
        if tier.num_domains < tiers[-1].num_domains:
            tiers.append(tier)
    return Network(
        levels=tuple(tier.name for tier in reversed(tiers)),
        paths={
            host: tuple(_domain_name(tier.of_host[host], graph.switch_names) for tier in reversed(tiers))
            for host in graph.hosts
        },
        links=_links(graph, tiers, num_slots=num_slots, odd=cabling.odd),
        facts=NetworkFacts(num_rails=_num_rails(leaves_of)),
    )


def _num_rails(leaves_of: Mapping[str, frozenset[str]]) -> int:
    """Return on how many leaves most hosts hang: each of a host's cards is then on a rail of its own."""
    ((num, _),) = Counter(len(leaves) for leaves in leaves_of.values()).most_common(1)
    return num


def _graph(cabling: Cabling) -> _Graph:
    host_of = cabling.hosts()
    names = cabling.switch_names()
    trunks: list[tuple[str, str, float | None]] = []
    drops: list[tuple[str, str, float | None]] = []
    neighbours: dict[str, set[str]] = {guid: set() for guid in names}
    for cable in cabling.cables():
        one, other = cable.ends
        if one in names and other in names:
            trunks.append((one, other, cable.bytes_per_s))
            neighbours[one].add(other)
            neighbours[other].add(one)
        elif one in names or other in names:
            switch, card = (one, other) if one in names else (other, one)
            if card in host_of:
                drops.append((host_of[card], switch, cable.bytes_per_s))
        else:
            cabling.odd.note("cable between two cards, which joins no levels")
    hosts = sorted({host for host, _, _ in drops})
    cabling.odd.note("host on no switch", len(set(host_of.values()) - set(hosts)))
    frozen = {guid: frozenset(others) for guid, others in neighbours.items()}
    return _Graph(tuple(hosts), names, frozen, trunks, drops)


def _leaves(graph: _Graph, cabling: Cabling) -> dict[str, frozenset[str]]:
    """Return the leaf switches that each host counts as hanging on.

    A host that hangs on some of those that more of the others have all of is one of them whose links are down.
    """
    own: dict[str, set[str]] = defaultdict(set)
    for host, switch, _ in graph.drops:
        own[host].add(switch)
    counts = Counter(frozenset(leaves) for leaves in own.values())
    found: dict[frozenset[str], frozenset[str]] = {}
    holders: dict[str, list[frozenset[str]]] = defaultdict(list)
    for leaves in counts:
        for leaf in leaves:
            holders[leaf].append(leaves)
    for leaves, count in counts.items():
        larger = [each for each in holders[min(leaves)] if leaves < each and counts[each] > count]
        usual = max(larger, key=lambda each: (counts[each], sorted(each)), default=leaves)
        cabling.odd.note("host that hangs on fewer leaves than the others there", 0 if usual == leaves else count)
        found[leaves] = usual
    return {host: found[frozenset(leaves)] for host, leaves in own.items()}


def _heights(graph: _Graph) -> dict[str, int]:
    """Return how far each switch is from the leaves, which are those with many cards, and some with few."""
    num_cards = Counter(switch for _, switch, _ in graph.drops)
    most = max(num_cards.values())
    busy = {switch for switch, number in num_cards.items() if number >= _FEW_RATIO * most}
    heights = _distances(graph, busy)
    quiet = {switch for switch in num_cards if heights.get(switch, 0) > 1}
    if quiet:
        below = _Sets()
        for one, other, _ in graph.trunks:
            if heights.get(one, 2) <= 1 and heights.get(other, 2) <= 1:
                below.join(one, other)
        # one that leads into a single pod is a leaf of it with few hosts; one above several is no leaf
        lonely = {each for each in quiet if len({below.root(near) for near in graph.neighbours[each]}) == 1}
        heights = _distances(graph, busy | lonely)
    unreached = {switch for switch in num_cards if switch not in heights}
    return heights | _distances(graph, unreached) if unreached else heights


def _distances(graph: _Graph, start: Iterable[str]) -> dict[str, int]:
    heights = dict.fromkeys(start, 0)
    edge = list(heights)
    while edge:
        ahead = []
        for switch in edge:
            for near in graph.neighbours[switch]:
                if near not in heights:
                    heights[near] = heights[switch] + 1
                    ahead.append(near)
        edge = ahead
    return heights


def _by_leaves(leaves_of: Mapping[str, frozenset[str]]) -> _Tier:
    """Return the first level: hosts by the leaves they have in common, which have one name where no other begins so."""
    firsts = Counter(min(leaves) for leaves in set(leaves_of.values()))
    names = {
        leaves: min(leaves) if firsts[min(leaves)] == 1 else _JOINT.join(sorted(leaves))
        for leaves in set(leaves_of.values())
    }
    of_switch: dict[str, str] = {}
    for leaves, name in sorted(names.items(), key=lambda item: item[1]):
        of_switch |= {leaf: of_switch.get(leaf, name) for leaf in leaves}
    return _Tier(_NAMES[0], {host: names[leaves] for host, leaves in leaves_of.items()}, of_switch)


def _joined(graph: _Graph, leaves_of: Mapping[str, frozenset[str]], allowed: Mapping[str, int], height: int) -> _Tier:
    """Return the level of hosts that reach one another over these switches only. The highest ones give the names."""
    sets = _Sets()
    for leaves in leaves_of.values():
        for leaf in leaves:
            sets.join(leaf, min(leaves))
    for one, other, _ in graph.trunks:
        if one in allowed and other in allowed:
            sets.join(one, other)
    first: dict[Hashable, str] = {}
    for switch in sorted(allowed, key=lambda each: (-allowed[each], each)):
        first.setdefault(sets.root(switch), switch)
    return _Tier(
        _level_name(height),
        {host: first.get(sets.root(min(leaves)), min(leaves)) for host, leaves in leaves_of.items()},
        {switch: first[sets.root(switch)] for switch in allowed},
    )


def _domain_name(guids: str, switch_names: Mapping[str, str]) -> str:
    return _JOINT.join(switch_names[guid] for guid in guids.split(_JOINT))


def _level_name(height: int) -> str:
    return _NAMES[height] if height < len(_NAMES) else f"tier{height + 1}"


def _links(graph: _Graph, tiers: Sequence[_Tier], *, num_slots: int, odd: Oddities) -> tuple[NetworkLevel, ...]:
    """Return what each level has for an accelerator when all use it at once: of the usual host, and of its uplinks."""
    if any(rate is None for *_, rate in (*graph.trunks, *graph.drops)):
        odd.note("fabric whose bandwidth is not told, as rates are missing")
        return ()
    of_host: dict[str, float] = defaultdict(float)
    for host, _, rate in graph.drops:
        of_host[host] += rate or 0.0
    least = statistics.median(of_host.values())
    odd.note("host with less bandwidth than the others", sum(each < least for each in of_host.values()))
    found = [NetworkLevel(level=tiers[0].name, bandwidth_bytes_per_s=least / num_slots)]
    names = [tier.name for tier in tiers[1:]]
    beyond = [None] if tiers[-1].num_domains > 1 else []  # leaves that are joined directly have no level above
    for below, name in zip(tiers, [*names, *beyond], strict=False):
        least = min(least, statistics.median(_uplinks_per_host(graph, below)))
        if least <= 0:
            break
        found.append(NetworkLevel(level=name, bandwidth_bytes_per_s=least / num_slots))
    return tuple(reversed(found))


def _uplinks_per_host(graph: _Graph, tier: _Tier) -> list[float]:
    """Return the bytes/s that leave each domain of a level, for each host in it."""
    leaving: dict[str, float] = dict.fromkeys(tier.of_host.values(), 0.0)
    for one, other, rate in graph.trunks:
        ends = tier.of_switch.get(one), tier.of_switch.get(other)
        if ends[0] != ends[1]:
            for end in ends:
                if end in leaving:
                    leaving[end] += rate or 0.0
    num_hosts = Counter(tier.of_host.values())
    return [rate / num_hosts[domain] for domain, rate in leaving.items()]
