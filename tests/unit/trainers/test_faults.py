from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.trainers.faults import INJECT_VARIABLE, Faults


def faults(inject: object, *, rank: int = 0, attempt: int = 1) -> Faults:
    return Faults.from_environment({INJECT_VARIABLE: json.dumps(inject)}, rank=rank, attempt=attempt)


def duration_s(call: Callable[[], None]) -> float:
    start_s = time.monotonic()
    call()
    return time.monotonic() - start_s


HANG = {"hang_s": 0.2, "hang_at_step": 5, "hang_rank": 1}


@pytest.mark.parametrize(
    ("rank", "attempt", "step", "hangs"),
    [(1, 1, 5, True), (0, 1, 5, False), (1, 2, 5, False), (1, 1, 4, False)],
)
def test_a_hang_strikes_its_rank_at_its_step_of_the_first_attempt(
    rank: int, attempt: int, step: int, hangs: bool
) -> None:
    ours = faults(HANG, rank=rank, attempt=attempt)

    assert (duration_s(lambda: ours.before_step(step)) >= 0.2) is hangs


def test_listed_attempts_replace_the_first() -> None:
    inject = HANG | {"attempts": [2, 3]}

    assert duration_s(lambda: faults(inject, rank=1, attempt=3).before_step(5)) >= 0.2
    assert faults(inject, rank=1, attempt=1).injections == ()


def test_slow_saves_and_a_late_rendezvous_can_be_asked_for_together() -> None:
    ours = faults([{"slow_save_s": 0.2, "at_step": 3}, {"rendezvous_wait_s": 0.2, "rank": 0}])

    assert duration_s(ours.before_rendezvous) >= 0.2
    assert duration_s(lambda: ours.before_seal(3)) >= 0.2
    assert duration_s(lambda: ours.before_seal(4)) < 0.2


@pytest.mark.parametrize(
    ("inject", "code"),
    [({"exit_code": 3, "rank": 1, "at_step": 5}, 3), ({"exit_early_rank": 1, "at_step": 5}, 0)],
)
def test_an_exit_ends_the_process_with_its_code(inject: dict[str, int], code: int) -> None:
    script = (
        "import os, sys\n"
        "from airflow_llmsched.trainers.faults import Faults\n"
        "for rank in (0, 1):\n"
        "    ours = Faults.from_environment(os.environ, rank=rank, attempt=1)\n"
        "    for step in range(1, 6):\n"
        "        print(rank, step, flush=True)\n"
        "        ours.before_step(step)\n"
        "sys.exit(99)\n"
    )
    environment = {INJECT_VARIABLE: json.dumps(inject)}

    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)

    assert ended.returncode == code
    assert ended.stdout.splitlines()[-1] == "1 5"
    assert INJECT_VARIABLE in ended.stderr


def test_nothing_is_injected_by_default() -> None:
    assert Faults.from_environment({}, rank=0, attempt=1).injections == ()


@pytest.mark.parametrize("text", ["{", "3", '[{"hang": 3}]', '["hang"]'])
def test_a_malformed_injection_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=INJECT_VARIABLE):
        Faults.from_environment({INJECT_VARIABLE: text}, rank=0, attempt=1)
