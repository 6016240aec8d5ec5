"""Makes a checkpoint reachable for the gang that is to go on from it: copied to where its cluster reads, if need be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_llmsched.control import events as ev
from airflow_llmsched.control.places import CheckpointPlace, CheckpointPlaces, is_below, moved
from airflow_llmsched.control.resume import CheckpointShelf, must_be_mounted
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged
from airflow_llmsched.domain.plan import Plan
from airflow_llmsched.errors import CouldNotLookError, DataError, StoreError
from airflow_llmsched.ports import Clock
from airflow_llmsched.units import MIB

CopyCheckpoint = Callable[[str, str], int]
"""Copies a checkpoint's folder to another place, whole and verified or not at all; returns the bytes that it wrote.

Repeating it is harmless. Raises ``DataError``, ``StoreError``.
"""


class Bringer:
    """Brings what a launch resumes from to where its nodes are. A storage that clusters share needs no copy."""

    def __init__(self, places: CheckpointPlaces, *, shelf: CheckpointShelf, copy: CopyCheckpoint, clock: Clock) -> None:
        self._places = places
        self._shelf = shelf
        self._copy = copy
        self._clock = clock

    def bring(self, chosen: ev.CheckpointChosen, plan: Plan) -> ev.CheckpointChosen:
        """Return ``chosen`` with its checkpoint where gangs of ``plan`` can read it, and how long that took.

        The copy is looked at as any checkpoint is before it is resumed from. Raises ``StoreError`` when it could not be
        made, ``CouldNotLookError`` when its source cannot be read, or the storage that it is to go to is away.
        """
        ref, place = chosen.checkpoint, self._places.of(plan)
        if ref is None or is_below(ref.path, place.root):
            return chosen
        source = self._places.holding(ref.path)
        if source is None:
            raise CouldNotLookError(f"{ref.path} lies in no storage of the fleet file any more: put it back, or clear")
        must_be_mounted(place)  # else the copy lies below its mount point, where no node sees it
        began_s = self._clock.now_s()
        here, num_bytes = self._brought(ref, source, place)
        took_s = self._clock.now_s() - began_s
        told = f"brought from {_name(source)} to {_name(place)}: {num_bytes / MIB:.1f} MiB in {took_s:.1f} s"
        note = f"{chosen.note}; {told}" if chosen.note else told
        return replace(chosen, at_s=self._clock.now_s(), checkpoint=here, note=note)

    def _brought(
        self, ref: CheckpointRef, source: CheckpointPlace, place: CheckpointPlace
    ) -> tuple[CheckpointRef, int]:
        here = replace(ref, path=moved(ref.path, source.root, place.root))
        try:
            num_bytes = self._copy(ref.path, here.path)
        except DataError as error:  # it was sound a moment ago: look again at what there is
            raise StoreError(str(error)) from error
        verdict = self._shelf.verify(here, anew=True)
        if isinstance(verdict, Damaged):
            raise StoreError(f"the copy of {ref.path} at {here.path} is damaged: {verdict.reason}; it is made again")
        return here, num_bytes


def _name(place: CheckpointPlace) -> str:
    return place.storage or "the run's own folder"
