"""Streams of gangs from recorded jobs: their arrivals, durations and sizes. The records are local, never shipped.

The records are of jobs of one to 128 GPUs, of which few span nodes. Jobs have grown since: here a GPU of theirs
is one to six whole nodes, drawn for each job, and a share of a GPU as large a share of one node.

A mix is a stretch of a record, from a random job on, in its order; a short record begins again. Gaps between arrivals
are shuffled, as hundreds come at once and nights are idle otherwise, and scaled by a factor, so that the stretch would
keep the fleet as busy as asked for if nothing were refused. It begins with the jobs that such a fleet holds at a random
moment: longer jobs are likelier to be met, at a random point of their time.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from tests.bench.placement_judge.fleet import Fleet
from tests.bench.placement_judge.gangs import SLOTS_PER_NODE, Gang, draw_gang

NODES_PER_GPU = (1, 2, 3, 4, 6)
DATA = Path(__file__).parents[4] / "shared" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a record. ``num_slots`` are those of the gang that it becomes where a GPU becomes one node."""

    arrival_s: float
    duration_s: float
    num_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A gang that comes and, unless it is refused, stays until ``end_s``."""

    gang: Gang
    arrival_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """``stays`` in order of arrival; the first ``num_present`` are there from the start, at time 0."""

    name: str
    stays: tuple[Stay, ...]
    num_present: int

    def events(self) -> Iterator[tuple[bool, Stay]]:
        """Yield (comes, stay): each arrival, and each departure that is due before the last of them."""
        leaving: list[tuple[float, int, Stay]] = []
        for number, stay in enumerate(self.stays):
            while leaving and leaving[0][0] <= stay.arrival_s:
                yield False, heapq.heappop(leaving)[2]
            yield True, stay
            heapq.heappush(leaving, (stay.end_s, number, stay))


def mix_of(name: str, jobs: Sequence[Job], *, fleet_slots: int, load: float, num_arrivals: int, seed: int) -> Mix:
    """Return a mix whose gangs would keep ``load`` of the fleet's slots busy."""
    rng = np.random.default_rng(seed)
    stretch = (np.arange(num_arrivals) + rng.integers(len(jobs))) % len(jobs)
    arrival_J = np.array([job.arrival_s for job in jobs])
    gap_A = rng.permutation(np.diff(arrival_J, prepend=arrival_J[0])[stretch])
    duration_A = np.array([job.duration_s for job in jobs])[stretch]
    factor_A = rng.choice(NODES_PER_GPU, size=num_arrivals)
    slots_A = np.array([job.num_slots for job in jobs])[stretch]
    slots_A = np.where(slots_A < SLOTS_PER_NODE, slots_A, slots_A * factor_A)
    arrival_A = np.cumsum(gap_A) * float((slots_A * duration_A).sum() / (load * fleet_slots) / gap_A.sum())
    drawn = []
    while sum(slots for _, _, slots in drawn) < load * fleet_slots:
        at = int(rng.choice(num_arrivals, p=duration_A / duration_A.sum()))
        drawn.append((0.0, duration_A[at] * rng.random(), int(slots_A[at])))
    num_present = len(drawn)
    drawn += zip(arrival_A.tolist(), (arrival_A + duration_A).tolist(), slots_A.tolist(), strict=True)
    stays = tuple(
        Stay(gang=draw_gang(rng, id_=id_, num_slots=num_slots), arrival_s=arrival_s, end_s=end_s)
        for id_, (arrival_s, end_s, num_slots) in enumerate(drawn)
    )
    return Mix(name=name, stays=stays, num_present=num_present)


def philly() -> list[Job]:
    """Return Microsoft's Philly jobs of 2017 (Jeon et al., ATC 2019), as Sia trims them."""
    rows = _rows("jobs/sia_philly.csv")
    return _sorted(
        Job(
            arrival_s=datetime.fromisoformat(row["timestamp"]).timestamp(),
            duration_s=float(row["duration"]),
            num_slots=int(row["num_gpus"]) * SLOTS_PER_NODE,
        )
        for row in rows
    )


def openb() -> list[Job]:
    """Return Alibaba's pods with GPUs of 2023 (Weng et al., ATC 2023), most with a share of one or a whole one."""
    return _sorted(
        Job(
            arrival_s=float(row["creation_time"]),
            duration_s=float(row["deletion_time"]) - float(row["creation_time"]),
            num_slots=_slots(int(row["num_gpu"]), int(row["gpu_milli"])),
        )
        for row in _rows("jobs/alibaba2023_openb_pods_default.csv")
        if int(row["num_gpu"]) > 0
    )


def tiresias() -> list[Job]:
    """Return the sixty jobs that Tiresias is shown on (Gu et al., NSDI 2019)."""
    return _sorted(
        Job(
            arrival_s=float(row["submit_time"]),
            duration_s=float(row["duration"]),
            num_slots=int(row["num_gpu"]) * SLOTS_PER_NODE,
        )
        for row in _rows("jobs/tiresias_60_job.csv")
    )


MIXES = {"philly": philly, "openb": openb, "tiresias": tiresias}


def lingjun() -> Fleet:
    """Return Alibaba's Lingjun cluster of 2023: 847 hosts below one core, three pods and 119 access switches."""
    levels = ("DSW", "PSW", "ASW")
    paths = sorted(tuple(row[level] for level in levels) for row in _rows("topology/lingjun2023_topo.csv"))
    return Fleet.of(paths, levels=levels, num_slots=SLOTS_PER_NODE)


def _slots(num_gpus: int, gpu_milli: int) -> int:
    """Return slots for so many whole GPUs, or for a share of one: a power of two of a node's that is no smaller."""
    if num_gpus > 1 or gpu_milli >= 1000:
        return num_gpus * SLOTS_PER_NODE
    return 1 << max(0, int(np.ceil(np.log2(gpu_milli / 1000 * SLOTS_PER_NODE))))


def _sorted(jobs: Iterator[Job]) -> list[Job]:
    return sorted((job for job in jobs if job.duration_s > 0), key=lambda job: job.arrival_s)


def _rows(path: str) -> Iterator[dict[str, str]]:
    with (DATA / path).open(newline="") as file:
        yield from csv.DictReader(file)
