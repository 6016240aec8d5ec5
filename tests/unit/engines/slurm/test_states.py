"""Every word of Slurm's has a meaning, and no other has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.domain.gang import GangPhase
from airflow_llmsched.domain.health import FAILURE_CLASS, FailureClass, FaultKind
from airflow_llmsched.engines.slurm.states import STATES, deciding, hopeless, state_of

# Of squeue(1), 22.05.
CODES = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "SI": "SIGNALING",
    "SE": "SPECIAL_EXIT",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}
# Words of "Job State Codes" (24.11) beyond those.
FLAGS = {"EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE", "RECONFIG_FAIL", "UPDATE_DB"}


@pytest.mark.parametrize(("code", "word"), CODES.items())
def test_c11_every_code_and_every_word_of_the_manual_is_in_the_table(code: str, word: str) -> None:
    assert state_of(code) is state_of(word) is STATES[word]


def test_the_table_holds_the_manuals_words_and_no_others() -> None:
    assert set(STATES) == {*CODES.values(), *FLAGS}


@pytest.mark.parametrize("word", ["CF", "SI", "SO", "R", "CG", "RQ", "RH", "SE", "ST", "S", "RS", "RD", "RF", "PD"])
def test_c11_rare_live_states_are_alive(word: str) -> None:
    assert not state_of(word).phase.ended


def test_no_end_but_one_is_a_success() -> None:
    ends = {word: state.phase for word, state in STATES.items() if state.phase.ended}
    assert [word for word, phase in ends.items() if phase is GangPhase.SUCCEEDED] == ["COMPLETED"]
    assert set(ends) == {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }


def test_who_must_act_follows_from_the_word() -> None:
    classes = {word: FAILURE_CLASS[state.fault] for word, state in STATES.items() if state.fault is not None}
    assert classes["OUT_OF_MEMORY"] is FailureClass.CODE
    assert classes["NODE_FAIL"] is classes["BOOT_FAIL"] is FailureClass.INFRASTRUCTURE
    assert classes["PREEMPTED"] is classes["TIMEOUT"] is classes["DEADLINE"] is FailureClass.PREEMPTION


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("CANCELLED by 1001", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("NODE_FAI+", "NODE_FAIL"),
        (" running \n", "RUNNING"),
        ("oom", "OUT_OF_MEMORY"),
    ],
)
def test_c12_suffixes_and_cut_words_are_understood(text: str, word: str) -> None:
    assert state_of(text).word == word


@pytest.mark.parametrize("text", ["", "+", "COMPLET+", "RE+", "MELTED", "RUNNINGX", "C"])
def test_an_unknown_word_or_one_that_could_be_several_is_loud(text: str) -> None:
    with pytest.raises(ValueError, match="no state of its manuals"):
        state_of(text)


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        (["FAILED", "COMPLETING"], "COMPLETING"),
        (["NODE_FAIL", "REQUEUED"], "REQUEUED"),
        (["PREEMPTED", "REQUEUED", "COMPLETING"], "COMPLETING"),
        (["RUNNING", "CONFIGURING"], "CONFIGURING"),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], "CONFIGURING"),
        (["PENDING", "RESV_DEL_HOLD"], "RESV_DEL_HOLD"),
        (["PENDING", "SPECIAL_EXIT", "REQUEUE_HOLD"], "REQUEUE_HOLD"),
        (["COMPLETED", "UPDATE_DB"], "COMPLETED"),
        (["COMPLETED", "STAGE_OUT"], "STAGE_OUT"),
        (["PENDING", "EXPEDITING"], "PENDING"),
        (["FAILED", "LAUNCH_FAILED"], "FAILED"),
        (["CANCELLED", "REVOKED"], "REVOKED"),
        (["RUNNING", "SIGNALING"], "RUNNING"),
    ],
)
def test_of_a_state_and_its_flags_the_right_one_decides_in_any_order(words: list[str], decides: str) -> None:
    assert deciding(words).word == deciding(words[::-1]).word == decides


def test_a_job_without_a_state_is_loud() -> None:
    with pytest.raises(ValueError, match="without a state"):
        deciding([])


@pytest.mark.parametrize("reason", ["BadConstraints", "(PartitionNodeLimit)", "launch_failed_requeued_held"])
def test_reasons_that_waiting_does_not_cure_are_known(reason: str) -> None:
    assert hopeless(reason)


@pytest.mark.parametrize("reason", ["", "None", "Resources", "Priority", "JobHeldUser", "QOSMaxJobsPerUserLimit"])
def test_other_reasons_may_pass(reason: str) -> None:
    assert hopeless(reason) is None


def test_a_cancelled_job_is_nobodys_success() -> None:
    assert state_of("CA").fault is FaultKind.STOPPED_OUTSIDE


def test_the_reference_page_lists_the_table_as_it_is() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "slurm.md").read_text()
    rows = [
        f"| `{state.word}` | {state.code or ''} | {state.says} | {state.phase} | {state.fault or ''} |"
        for state in STATES.values()
    ]
    assert "\n".join(rows) in page
