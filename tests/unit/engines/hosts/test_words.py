from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.engines.agent_states import NodeFacts
from airflow_llmsched.engines.hosts import words
from airflow_llmsched.engines.hosts.bundle import MARK
from airflow_llmsched.engines.hosts.words import Failed, Gone, Part, Survey, Unseen, answer_of, sight_of, survey_of

H1 = NodeId("h1")
WHOSE = {"channel_root": "/c", "origin": None, "submitted_at_s": 5.0, "nodes": ["h1", "h2"]}
NODE: dict[str, Any] = {
    "node": "h1",
    "claimed": True,
    "supervisor_alive": False,
    "stray": False,
    "started_at_s": 6.0,
    "alive_at_s": 7.5,
    "notice_deadline_s": None,
}
END = {"rank": 0, "at_s": 8.0, "exit_code": 1, "signal": None, "forced": False, "log_tail": "no", "kind": "end"}
EXIT = {"at_s": 8.5, "outcome": "aborted", "fault": "rank_failed", "reason": "why", "ends": [END]}
FACTS = {"nodes": [{**NODE, "exit": EXIT}], "go": True, "stop_at_s": None, "abort": None}
HERE: dict[str, Any] = {"kind": "here", "facts": FACTS, "whose": WHOSE}


def line(**told: Any) -> bytes:
    return f"{MARK}{json.dumps(told)}\n".encode()


def test_answer_is_found_among_what_a_login_shell_writes() -> None:
    output = b"Welcome!\n" + line(v=1, ok={"a": 1}) + b"bye\n"
    assert answer_of(output) == {"a": 1}
    assert answer_of(b"bash: python3: command not found\n") is None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"v": 1, "failed": "OSError: no"}, "OSError: no"),
        ({"v": 1, "refused": "python 3.9 is too old"}, "python 3.9 is too old"),
        ({"v": 2, "ok": {}}, "another version"),
        ({"v": 1, "ok": []}, "damaged"),
    ],
)
def test_answer_that_is_none_says_why(told: dict[str, Any], reason: str) -> None:
    answer = answer_of(line(**told))
    assert isinstance(answer, Failed)
    assert reason in answer.reason


def test_texts_of_a_host_are_tamed() -> None:
    answer = answer_of(line(v=1, ok={"a": "x" * 50_000 + "\x1b[2J\0end\n"}))
    assert isinstance(answer, dict)
    assert len(answer["a"]) == words.MAX_TEXT
    assert answer["a"].endswith("\ufffd[2J\ufffdend\n")
    for hostile in (b"[" * 100_000, b'{"v":1,"ok":{"at_s":NaN}}', b'{"v":1'):
        assert isinstance(answer_of(MARK.encode() + hostile), Failed)


def test_part_of_a_gang_is_read_whole() -> None:
    part = sight_of(HERE, node=H1)
    assert isinstance(part, Part)
    assert part.node == NodeFacts(node=H1, claimed=True, started_at_s=6.0, alive_at_s=7.5, exit=EXIT)
    assert (part.go, part.abort, part.whose.nodes) == (True, None, ("h1", "h2"))


def test_absent_abandoned_stray_and_unreadable_are_four_things() -> None:
    assert sight_of({"kind": "absent"}, node=H1) == Gone()
    assert sight_of({"kind": "abandoned", "at_s": 1.0}, node=H1) == Gone(for_good=True)
    stray = sight_of({"kind": "stray", "whose": WHOSE}, node=H1)
    assert isinstance(stray, Part)
    assert stray.node.stray
    assert sight_of({"kind": "unreadable", "reason": "disk"}, node=H1) == Unseen(reason="disk")


def test_survey_is_read_and_what_makes_no_sense_is_said() -> None:
    plain = {"at_s": 9.0, "attempts": {"a": HERE}, "all": {"a": True}, "used": [0, 2], "gpus": None}
    survey = survey_of(plain, node=H1)
    assert isinstance(survey, Survey)
    assert (survey.used_slots, survey.all_names) == (frozenset({0, 2}), {"a": True})
    for damage in ({"at_s": "x"}, {"attempts": []}, {"used": [None]}, {"attempts": {"a": {"kind": "new"}}}):
        assert isinstance(survey_of({**plain, **damage}, node=H1), Failed)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(value=JSON, key=st.sampled_from([*FACTS, "kind", "whose", "nodes"]))  # type: ignore[misc]
def test_no_answer_of_a_host_raises_what_nobody_expects(value: Any, key: str) -> None:
    spoiled = {**HERE, key: value, "facts": {**FACTS, key: value}}
    for plain in (value, {"at_s": 1.0, "attempts": {"a": spoiled}}, {"at_s": 1.0, "attempts": value}):
        told = plain if isinstance(plain, dict) else {"at_s": plain}
        assert isinstance(survey_of(told, node=H1), Survey | Failed)
