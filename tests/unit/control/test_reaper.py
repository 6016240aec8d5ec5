"""Every combination of what can be known about a live gang: one in many may be reaped."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.control.reaper import (
    WORD_OF_STATE,
    AirflowWord,
    Ask,
    GangFacts,
    JournalFacts,
    Reap,
    ReaperLimits,
    RunFacts,
    Spare,
    judge,
)
from airflow_llmsched.control.run_state import RunPhase
from airflow_llmsched.domain.gang import FoundGang, GangHandle
from airflow_llmsched.domain.identity import AttemptKey
from tests.support.sim_house import RUN

NOW_S = 1_000_000.0
LIMITS = ReaperLimits(skew_s=60.0, silence_s=600.0, unleased_s=3600.0)
OURS = "ours"
LONG_AGO_S = NOW_S - 100_000.0

JOURNALS = {
    "none": None,
    "open": JournalFacts(num_records=9, phase=RunPhase.WATCHING, written_at_s=LONG_AGO_S),
    "closed": JournalFacts(num_records=9, phase=RunPhase.CANCELLED, written_at_s=LONG_AGO_S),
    "unreadable": "the share is gone",
}
DEPLOYMENTS = {"ours": OURS, "another's": "another", "unsaid": None}
LEASES = {"holds": NOW_S + 5.0, "just over": NOW_S - 59.0, "over": NOW_S - 61.0, "never renewed": None}
SIGNS = {"speak": NOW_S - 599.0, "silent": NOW_S - 601.0, "never spoke": None, "unheard": "channel is gone"}
WORDS = {**{word.value: word for word in AirflowWord}, "not asked": None}


def gang(*, number: int = 1, lease: float | None, sign: float | str | None, **changes: object) -> GangFacts:
    key = AttemptKey(run=RUN, generation=1, attempt=number)
    found = FoundGang(
        handle=GangHandle(engine="x", key=key, native_id=key.name), channel_root="/c", submitted_at_s=LONG_AGO_S
    )
    return GangFacts(
        gang=replace(found, **changes),
        lease_until_s=lease,
        agents_seen_at_s=None if isinstance(sign, str) else sign,
        unheard=sign if isinstance(sign, str) else "",
    )


def facts(journal: str, deployment: str, lease: str, sign: str, word: str) -> RunFacts:
    known = JOURNALS[journal]
    return RunFacts(
        run_key=RUN,
        gangs=(gang(lease=LEASES[lease], sign=SIGNS[sign]),),
        dag_id="dag",
        run_id="run",
        deployment_id=DEPLOYMENTS[deployment],
        journal=known if isinstance(known, JournalFacts) else None,
        unreadable=known if isinstance(known, str) else "",
        airflow=WORDS[word],
    )


def verdict(what: RunFacts, now_s: float = NOW_S) -> Reap | Spare | Ask:
    return judge(what, deployment_id=OURS, now_s=now_s, limits=LIMITS)


@pytest.mark.parametrize(("journal", "deployment"), list(itertools.product(JOURNALS, DEPLOYMENTS)))
def test_every_combination(journal: str, deployment: str) -> None:
    is_known_as_ours = deployment == "ours" or (deployment == "unsaid" and journal in ("open", "closed"))
    for lease, sign, word in itertools.product(LEASES, SIGNS, WORDS):
        found = verdict(facts(journal, deployment, lease, sign, word))
        expired, silent = lease in ("over", "never renewed"), sign in ("silent", "never spoke")
        if not (is_known_as_ours and journal != "unreadable" and expired and silent):
            expected: type = Spare
        elif word == "not asked":
            expected = Ask
        else:
            expected = Reap if word in ("finished", "unknown") else Spare
        assert type(found) is expected, (lease, sign, word, found)
        assert isinstance(found, Ask) or found.reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deployment": "another's"}, "belongs to deployment another"),
        ({"deployment": "unsaid", "journal": "none"}, "says not whose it is"),
        ({"journal": "unreadable"}, "not the same as absent: the share is gone"),
        ({"sign": "unheard"}, "could not be heard: channel is gone"),
        ({"lease": "holds"}, "its lease holds for another 65 s"),
        ({"sign": "speak"}, "last sign 599 s ago, silent only after 600 s"),
        ({"word": "running"}, "Airflow calls its DAG run running"),
        ({"word": "could_not_ask"}, "could not be asked about run 'run' of DAG 'dag'"),
        ({"word": "finished"}, "expired 1 s ago, agents silent for 601 s, and Airflow calls its DAG run finished"),
        ({"word": "unknown"}, "does not know its DAG run"),
    ],
)
def test_reason_says_what_was_decisive(changes: dict[str, str], words: str) -> None:
    known = {"journal": "open", "deployment": "ours", "lease": "over", "sign": "silent", "word": "unknown", **changes}
    found = verdict(facts(**known))
    assert not isinstance(found, Ask)
    assert words in found.reason


def condemned() -> RunFacts:
    return facts("open", "ours", "over", "silent", "unknown")


def test_run_of_which_nothing_lives_is_left_alone() -> None:
    assert isinstance(verdict(condemned()), Reap)
    assert isinstance(verdict(replace(condemned(), gangs=())), Spare)


@pytest.mark.parametrize(
    "healthy",
    [
        gang(number=2, lease=LEASES["holds"], sign=SIGNS["silent"]),
        gang(number=2, lease=LEASES["over"], sign=SIGNS["speak"]),
        gang(number=2, lease=LEASES["over"], sign=SIGNS["unheard"]),
        gang(number=2, lease=LEASES["over"], sign=None, agents_seen_at_s=NOW_S),
        gang(number=2, lease=LEASES["over"], sign=None, submitted_at_s=NOW_S - 10.0),
        gang(number=2, lease=None, sign=None, submitted_at_s=NOW_S - 3599.0),
    ],
    ids=["leased", "speaks", "unheard", "seen by its engine", "just launched", "not expired"],
)
def test_one_gang_in_doubt_spares_the_run(healthy: GangFacts) -> None:
    for gangs in ((*condemned().gangs, healthy), (healthy, *condemned().gangs)):
        assert isinstance(verdict(replace(condemned(), gangs=gangs)), Spare)


def test_gang_without_a_lease_expires_after_the_runs_last_record() -> None:
    what = facts("open", "ours", "never renewed", "silent", "unknown")
    recent = JournalFacts(num_records=9, phase=RunPhase.WATCHING, written_at_s=NOW_S - 3599.0)
    assert isinstance(verdict(what), Reap)
    assert isinstance(verdict(replace(what, journal=recent)), Spare)


def test_run_that_nothing_names_is_spared() -> None:
    found = verdict(replace(condemned(), dag_id="", run_id="", airflow=AirflowWord.COULD_NOT_ASK))
    assert isinstance(found, Spare)
    assert "nothing names its DAG run" in found.reason


def test_clock_of_an_agent_that_runs_ahead_is_a_sign_of_life() -> None:
    what = replace(condemned(), gangs=(gang(lease=LEASES["over"], sign=NOW_S + 9_999.0),))
    assert isinstance(verdict(what), Spare)


@given(st.floats(0, 2 * NOW_S), st.floats(0, 2 * NOW_S), st.floats(0, 1e7), st.sampled_from([None, *AirflowWord]))
def test_once_reapable_time_alone_never_spares(
    lease_s: float, sign_s: float, later_s: float, word: AirflowWord
) -> None:
    what = replace(condemned(), gangs=(gang(lease=lease_s, sign=sign_s),), airflow=word)
    if isinstance(verdict(what), Reap):
        assert isinstance(verdict(what, now_s=NOW_S + later_s), Reap)
        assert word in (AirflowWord.FINISHED, AirflowWord.UNKNOWN)


def test_every_state_of_airflows_has_a_word() -> None:
    from airflow.utils.state import DagRunState

    assert {state.value for state in DagRunState} == set(WORD_OF_STATE)
