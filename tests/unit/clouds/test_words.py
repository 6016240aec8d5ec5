"""A word that nobody knows is said with what it is about, and hides nothing."""

from __future__ import annotations

import pytest

from airflow_llmsched.clouds.words import state_of

TABLE = {"up": 1, "gone": 2}


def test_a_known_word_is_looked_up_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    assert [state_of(TABLE, word, thing="AWS instance i-1", otherwise=0) for word in TABLE] == [1, 2]
    assert caplog.records == []


def test_an_unknown_word_is_an_error_line_that_names_cloud_machine_and_word(caplog: pytest.LogCaptureFixture) -> None:
    assert state_of(TABLE, "dozing", thing="AWS instance i-1", otherwise=0) == 0
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith("AWS instance i-1 is called 'dozing'")
