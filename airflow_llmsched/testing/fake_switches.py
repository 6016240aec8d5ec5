"""A network of programmable switches that only remembers what it was told, with as little room as real ones have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_llmsched.domain.identity import AttemptKey
from airflow_llmsched.domain.switches import SwitchRequest
from airflow_llmsched.errors import CapacityError, SpecError


class FakeSwitches:
    """A ``SwitchController`` over ``domains``, each of which has room for ``trees_per_domain`` aggregation trees.

    A tree takes room in its domain, and in those around it, whose switches are on its way.
    """

    def __init__(self, domains: Collection[tuple[str, ...]], *, trees_per_domain: int) -> None:
        self._domains = frozenset(domains) | {()}
        self._room = trees_per_domain
        self._held: dict[AttemptKey, SwitchRequest] = {}

    def reserve(self, request: SwitchRequest) -> None:
        """Grant all of a request or none. Raises ``CapacityError``, or ``SpecError`` as the port says."""
        if self._held.get(request.gang) == request:
            return
        if request.gang in self._held:
            raise SpecError(path="switches", value=request.gang.name, hint="holds something else: release that first")
        for domain in request.domains:
            if domain not in self._domains:
                known = ", ".join("/".join(each) or "(all)" for each in sorted(self._domains))
                raise SpecError(path="switches", value="/".join(domain), hint=f"no such domain; known: {known}")
            for around in _around(domain):
                left = self._room - self._trees_in(around)
                if request.num_trees > left:
                    name = "/".join(around) or "all"
                    raise CapacityError(f"the switches of {name} have room for {left} of {request.num_trees} trees")
        self._held[request.gang] = request

    def held(self) -> Mapping[AttemptKey, SwitchRequest]:
        """Return what gangs hold."""
        return dict(self._held)

    def release(self, gang: AttemptKey) -> None:
        """Give back what a gang holds."""
        self._held.pop(gang, None)

    def _trees_in(self, domain: tuple[str, ...]) -> int:
        return sum(
            request.num_trees
            for request in self._held.values()
            if any(domain in _around(each) for each in request.domains)
        )


def _around(domain: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [domain[:depth] for depth in range(len(domain) + 1)]
