"""Numbers of what gangs hold of a node: accelerators, and slices of those that are divided.

A slice's number says of which accelerator it is. So whoever lists a node's accelerators undivided, or divides others of
them, still sees that it cannot have the whole of one that a gang has a slice of, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable

FIRST_SLICE = 1000
"""Numbers of slices begin here: no node has as many accelerators."""


def slice_slots(accelerator: int, num_slices: int) -> range:
    """Return the numbers of an accelerator's slices."""
    first = (accelerator + 1) * FIRST_SLICE
    return range(first, first + num_slices)


def accelerator_of(slot: int) -> int:
    """Return the accelerator that a slot is, or is a slice of."""
    return slot if slot < FIRST_SLICE else slot // FIRST_SLICE - 1


def taken_of(slots: Iterable[int], held: Iterable[int]) -> frozenset[int]:
    """Return those of a node's ``slots`` that nobody can have beside ``held``.

    That is what is held itself, slices of what is held whole, and the whole of what slices are held of.
    """
    held = frozenset(held)
    parted = {accelerator_of(slot) for slot in held if slot >= FIRST_SLICE}
    return frozenset(slot for slot in slots if slot in held or slot in parted or accelerator_of(slot) in held)
