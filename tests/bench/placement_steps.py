"""Part of ``make bench-placement``: step times and whole domains on mixes of gangs, ours beside each baseline's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_llmsched.registry import AdapterGroup, load
from tests.bench.placement_judge.fleet import Fleet, FloatArray
from tests.bench.placement_judge.judged import Judged
from tests.bench.placement_judge.kueue_tas import KueueTas, Profile
from tests.bench.placement_judge.mixes import MIXES, Mix, lingjun, mix_of
from tests.bench.placement_judge.random_nodes import RandomNodes
from tests.bench.placement_judge.replay import Baseline, Placer, replayed
from tests.bench.placement_judge.slurm_tree import SlurmTree
from tests.bench.placement_judge.verdict import fabric_of, ratios, step_times, summary
from tests.bench.placement_judge.volcano_hypernodes import VolcanoHyperNodes
from tests.bench.rows import Row
from tests.bench.spread import spread

OURS = "ours"
SLURM = "Slurm tree"
MOST_FREE = f"Kueue {Profile.MOST_FREE}"
RANDOM = "random"
BEATEN = (SLURM, MOST_FREE, RANDOM)
"""Baselines that a bar is set by; the others are shown beside."""
LOAD = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How much is replayed. ``time_limit_s`` is ours for one gang."""

    solver: str
    num_arrivals: int
    num_looks: int
    num_seeds: int
    num_hashes: int
    time_limit_s: float
    seed: int
    num_processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One mix, seen by one placer."""

    mix: str
    placer: str
    seed: int
    terms: Terms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What one placer makes of one mix. ``looks`` are step times by gang."""

    looks: list[dict[int, float]]
    whole_hosts: int
    num_refused: int
    busy_ratio: float


def placers(terms: Terms, seed: int) -> dict[str, Placer]:
    """Return who is compared, ours first."""
    return {
        OURS: Judged(load(AdapterGroup.PLACEMENT_SOLVERS, terms.solver)(), seed=seed, time_limit_s=terms.time_limit_s),
        SLURM: Baseline(SlurmTree()),
        **{f"Kueue {profile}": Baseline(KueueTas(profile)) for profile in Profile},
        "Volcano": Baseline(VolcanoHyperNodes()),
        RANDOM: Baseline(RandomNodes(seed)),
    }


def measured_steps(terms: Terms) -> list[Row]:
    """Replay every mix with every placer, and compare."""
    names = list(placers(terms, 0))
    seeds = range(terms.seed, terms.seed + terms.num_seeds)
    cases = [Case(mix=mix, placer=name, seed=seed, terms=terms) for mix in MIXES for seed in seeds for name in names]
    found = spread(outcome, cases, num_processes=terms.num_processes)
    outcomes = dict(zip(cases, found, strict=True))
    rows = []
    for mix in MIXES:
        by_seed = [
            {case.placer: each for case, each in outcomes.items() if (case.mix, case.seed) == (mix, seed)}
            for seed in seeds
        ]
        rows += rows_of(mix, [made_mix(mix, seed, terms) for seed in seeds], by_seed)
    return rows


def made_mix(name: str, seed: int, terms: Terms) -> Mix:
    """Return a mix for the Lingjun fleet."""
    slots = lingjun().free_NS.size
    return mix_of(name, MIXES[name](), fleet_slots=slots, load=LOAD, num_arrivals=terms.num_arrivals, seed=seed)


def outcome(case: Case) -> Outcome:
    """Replay a case on the Lingjun fleet."""
    mix = made_mix(case.mix, case.seed, case.terms)
    placer = placers(case.terms, case.seed)[case.placer]
    terms = case.terms
    return outcome_of(mix, lingjun(), placer, num_looks=terms.num_looks, num_hashes=terms.num_hashes, seed=case.seed)


def outcome_of(mix: Mix, fleet: Fleet, placer: Placer, *, num_looks: int, num_hashes: int, seed: int) -> Outcome:
    """Replay one mix with one placer on an idle fleet, and let its gangs step at each look."""
    played = replayed(mix, fleet, placer, num_snapshots=num_looks)
    return Outcome(
        looks=step_times(mix, played, [fabric_of(fleet, salt=salt) for salt in range(num_hashes)], seed=seed),
        whole_hosts=played.snapshots[-1].whole_hosts,
        num_refused=len(played.refused),
        busy_ratio=float(np.mean([snapshot.busy_ratio for snapshot in played.snapshots])),
    )


def rows_of(name: str, mixes: Sequence[Mix], by_seed: Sequence[Mapping[str, Outcome]]) -> list[Row]:
    """Compare ours with each other on one mix: the medians over seeds, with the seeds' own figures beside."""
    others = [placer for placer in by_seed[0] if placer != OURS]
    rows = [_steps_row(name, other, _ratios(mixes, by_seed, other)) for other in others]
    whole = {placer: [each[placer].whole_hosts for each in by_seed] for placer in by_seed[0]}
    ours = whole.pop(OURS)
    rows.append(
        Row(
            name=f"{name}: hosts of the largest gang on whole switches, at the end",
            value=float(np.median(ours)),
            above=max(float(np.median(whole[other])) for other in BEATEN),
            reference={
                **{placer: float(np.median(hosts)) for placer, hosts in whole.items()},
                "mean": float(np.mean(ours)),
                **{f"mean of {other}": float(np.mean(whole[other])) for other in BEATEN},
            },
        )
    )
    refused = {placer: float(sum(each[placer].num_refused for each in by_seed)) for placer in by_seed[0]}
    busy = float(np.mean([each[OURS].busy_ratio for each in by_seed]))
    rows.append(Row(name=f"{name}: busy slots, ratio", value=busy, above=0.6, below=0.9))
    rows.append(Row(name=f"{name}: refused gangs", value=refused.pop(OURS), reference=refused))
    return rows


def _steps_row(name: str, other: str, by_seed: Sequence[FloatArray]) -> Row:
    """A ratio of 1 to all digits is a tie of gangs that nothing slows under either placer."""
    means = [summary(each).mean for each in by_seed]
    together = summary(np.concatenate(by_seed))
    return Row(
        name=f"{name}: step time over {other}'s",
        value=float(np.median(means)),
        below=1.0 if other in BEATEN else None,
        reference={
            "lowest": min(means),
            "highest": max(means),
            "of all gangs": together.mean,
            "95% are below": together.p95,
            "gangs": together.num_gangs,
        },
    )


def _ratios(mixes: Sequence[Mix], by_seed: Sequence[Mapping[str, Outcome]], other: str) -> list[FloatArray]:
    return [
        ratios({stay.gang.id: stay.gang for stay in mix.stays}, outcomes[OURS].looks, outcomes[other].looks)
        for mix, outcomes in zip(mixes, by_seed, strict=True)
    ]
