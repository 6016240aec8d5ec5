"""Which ground a machine belongs to. What two engines can both reach is shared out by one of them, under one name.

Engines list their machines (``ports.InventoryEngine``). Whoever opens one joins its list to those that others have
opened: a list that shares nothing with them is a ground of its own, one that shares machines joins theirs. A ground
that is no use any more, as an engine now has machines of several, or calls one by another name, is closed once nobody
claims anything of it: whoever comes late to it claims nothing there, and looks again for where its machines are now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from airflow_llmsched.control.arbiter_ground import Ground
from airflow_llmsched.domain.fleet import FLEET
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.numbered import Form, Numbered
from airflow_llmsched.ports import Clock, ObjectStore

_JOIN = EffectPoint("arbiter.join")

FOLDER = "arbiter-machines"

NUM_TRIES = 20
"""How often others may change what was found before it is written."""

Inventory = Mapping[NodeId, str]
"""Machines by what an engine calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What each ground calls its machines, by machine; and the names of grounds that are closed."""

    grounds: Mapping[str, Mapping[str, NodeId]] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A ground has these machines now, among them those of grounds that are closed for it."""

    ground: str
    machines: Mapping[str, NodeId]
    instead_of: tuple[str, ...] = ()
    kind: Literal["joined"] = "joined"


def apply(state: Machines, change: Joined) -> Machines:
    """Return the state after ``change``."""
    kept = {name: machines for name, machines in state.grounds.items() if name not in change.instead_of}
    return Machines(
        grounds={**kept, change.ground: change.machines}, closed=state.closed | frozenset(change.instead_of)
    )


def joined(state: Machines, name: str, inventory: Inventory, closed: frozenset[str] = frozenset()) -> Joined:
    """Return to which ground an engine's machines belong, and which ones that closes; ``name`` is that of a new one.

    ``closed`` are grounds that have been closed, though it is not written yet what for. A fleet is always a ground by
    itself, which has what its file lists now. Pure.
    """
    mine = {machine: node for node, machine in inventory.items()}
    shared = sorted(_touched(state, inventory))
    if name == FLEET:
        return Joined(ground=FLEET, machines=mine, instead_of=tuple(each for each in shared if each != FLEET))
    if len(shared) == 1 and shared[0] not in closed and _agree(state.grounds[shared[0]], mine):
        return Joined(ground=shared[0], machines={**state.grounds[shared[0]], **mine})
    if FLEET in shared:
        machine = min(state.grounds[FLEET].keys() & mine.keys())
        hint = f"is {state.grounds[FLEET][machine]} of the fleet file: name its cluster as the engine instead"
        raise SpecError(path="engine_options", value=machine, hint=hint)
    machines = {**{key: node for each in shared for key, node in state.grounds[each].items()}, **mine}
    names = [name, *(f"{name}-{number}" for number in range(2, len(state.closed) + len(state.grounds) + 3))]
    free = next(each for each in names if each not in state.closed | closed | state.grounds.keys())
    # What nobody lists any more under a name that is another machine's now is forgotten: it was claimed by nobody.
    machines = {key: node for key, node in machines.items() if key in mine or node not in inventory}
    return Joined(ground=free, machines=machines, instead_of=tuple(shared))


def _agree(theirs: Mapping[str, NodeId], mine: Mapping[str, NodeId]) -> bool:
    """Whether both call each machine the same, and no two of them alike."""
    both = {**theirs, **mine}
    return all(theirs[machine] == mine[machine] for machine in theirs.keys() & mine.keys()) and len(
        set(both.values())
    ) == len(both)


def scope_of(inventory: Inventory, parts: Mapping[NodeId, str] | None = None) -> str:
    """Return what stands for all of an engine's machines: the same for engines that have the same, called the same.

    ``parts`` are what it has of each (``ports.PartialEngine``).
    """
    had = parts or {}
    words = "\n".join(f"{node} {machine} {had.get(node, '')}" for node, machine in sorted(inventory.items()))
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def known_grounds(inventory: Inventory, name: str, *, store: ObjectStore, clock: Clock) -> tuple[str, ...]:
    """Return the grounds that an engine's machines belong to by now, for whoever claims nothing; ``name`` without any.

    They are several where its list was changed, and runs still claim nodes of more than one. Raises ``StoreError``.
    """
    state = Numbered(store, FOLDER, FORM, clock=clock).read()
    return (name,) if name == FLEET else tuple(sorted(_touched(state, inventory))) or (name,)


def lacking(ground: str, inventory: Inventory, *, store: ObjectStore, clock: Clock) -> frozenset[NodeId]:
    """Return which of an engine's nodes a ground does not have, or not under that name. Raises ``StoreError``."""
    machines = Numbered(store, FOLDER, FORM, clock=clock).read().grounds.get(ground, {})
    return frozenset(node for node, machine in inventory.items() if machines.get(machine) != node)


def join_ground(inventory: Inventory, name: str, *, store: ObjectStore, clock: Clock) -> str:
    """Return the ground that an engine's machines belong to from now on; ``name`` is that of a new one.

    Raises:
        SpecError: runs hold or await nodes of a ground that has to be closed first; it says which, and what to do.
        StoreError: the state root could not be read or written.
        CouldNotLookError: others join machines all the while.
    """
    book = Numbered(store, FOLDER, FORM, clock=clock)
    for _ in range(NUM_TRIES):
        state = book.read()
        closed = frozenset(each for each in _touched(state, inventory) if _is_closed(store, each, clock))
        wanted = joined(state, name, inventory, closed)
        for each in wanted.instead_of:
            _close(store, each, clock, inventory)
        if not wanted.instead_of and state.grounds.get(wanted.ground) == wanted.machines:
            return wanted.ground
        with _JOIN:
            after = book.change(partial(_unless_changed, wanted, state))
        if after.grounds.get(wanted.ground) == wanted.machines and not after.grounds.keys() & set(wanted.instead_of):
            return wanted.ground
    raise CouldNotLookError(f"machines are joined to grounds all the while: who shares {name} out is not known yet")


def _unless_changed(change: Joined, seen: Machines, found: Machines) -> Joined | None:
    return change if found == seen else None


def _touched(state: Machines, inventory: Inventory) -> list[str]:
    mine = set(inventory.values())
    return [each for each, theirs in state.grounds.items() if theirs.keys() & mine]


def _is_closed(store: ObjectStore, name: str, clock: Clock) -> bool:
    return Ground(store, name, clock=clock).state().is_closed


def _close(store: ObjectStore, name: str, clock: Clock, inventory: Inventory) -> None:
    ground = Ground(store, name, clock=clock)
    if ground.close():
        return
    claims = ground.state().claims
    shown = ", ".join(sorted(claims)[:3])
    raise SpecError(
        path="engine_options",
        value=", ".join(sorted(inventory)[:5]),
        hint=f"has machines of {name}, which other lists of hosts share out, and {len(claims)} runs ({shown}) hold or "
        "await nodes of it: let those end first, or list the same machines under the same names as they do. Runs that "
        "hold some go on",
    )


FORM = Form(
    noun="machines",
    version=1,
    empty=Machines(),
    state_type=Machines,
    change_type=Annotated[Joined, Field()],
    apply=apply,
    forget=lambda state, _now_s: replace(state),
)
