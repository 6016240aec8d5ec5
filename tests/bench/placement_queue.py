"""The part of ``make bench-placement`` about many gangs: how fast they are decided about, and what that is worth."""

from __future__ import annotations

import time
from statistics import mean

from airflow_llmsched.planner.queue.choices import choices, front
from airflow_llmsched.planner.queue.decide import decide
from tests.bench.rows import Row
from tests.support.queue_baselines import first_come, strict_priority
from tests.support.queue_mixes import flood_and_few, front_by_brute_force, rows_of, slowdown, small_state
from tests.support.queue_sim import Decide, History, QueueSim
from tests.support.queues import PLACE, crowd, racks, state_of

SCALE = 4


def measured_queue(*, num_mixes: int, num_fronts: int, seed: int) -> list[Row]:
    """Return how long a look takes, how gangs and teams fare beside simpler rules, and fronts that are not the best."""
    return [
        measured_look(seed=seed),
        *measured_mixes(num_mixes=num_mixes, seed=seed),
        measured_fronts(num_fronts, seed),
    ]


def measured_look(*, seed: int) -> Row:
    """Measure in CPU seconds, so that what else runs on the machine counts less."""
    took_s = []
    for number in range(3):
        state = crowd(seed + number)
        start_s = time.process_time()
        decide(state, PLACE)
        took_s.append(time.process_time() - start_s)
    return Row(
        name="1,000 waiting, 1,000 running gangs on 2,048 nodes, one look", value=min(took_s), unit="s", below=0.5
    )


def measured_mixes(*, num_mixes: int, seed: int, scale: int = SCALE) -> list[Row]:
    """Replay mixes by our rules and by simpler ones: mean completion, and the ratio of two teams' slowdowns."""
    done_s: dict[str, list[float]] = {}
    spread: dict[str, list[float]] = {}
    rules: dict[str, Decide] = {
        "ours": lambda state: decide(state, PLACE),
        "first come": first_come,
        "strict priority": strict_priority,
    }
    for number in range(num_mixes):
        jobs = flood_and_few(seed + number, scale=scale)
        for name, rule in rules.items():
            history = _replay(jobs, rule, scale)
            done_s.setdefault(name, []).append(history.mean_completion_s)
            spread.setdefault(name, []).append(slowdown(history, jobs, "blue") / slowdown(history, jobs, "red"))
    others = [name for name in rules if name != "ours"]
    return [
        Row(
            name="mean completion of gangs, beside the better of simpler rules",
            value=max(mean(done_s["ours"]) / mean(done_s[name]) for name in others),
            below=1.0,
            reference={name: mean(times) for name, times in done_s.items()},
        ),
        Row(
            name="slowdown of a small team over a large one's, beside the better of simpler rules",
            value=max(mean(spread["ours"]) / mean(spread[name]) for name in others),
            below=1.0,
            reference={name: mean(ratios) for name, ratios in spread.items()},
        ),
    ]


def measured_fronts(num_cases: int, seed: int) -> Row:
    """Count small queues whose front over the five objectives is another than brute force finds."""
    states = [small_state(seed + number) for number in range(num_cases)]
    num_wrong = sum(rows_of(front(choices(state, PLACE))) != front_by_brute_force(state) for state in states)
    return Row(name=f"fronts of {num_cases} small queues that brute force finds otherwise", value=num_wrong, below=1)


def _replay(jobs: list, rule: Decide, scale: int) -> History:
    return QueueSim(empty=state_of(racks(4 * scale, blocks=2)), decide=rule).run(jobs)
