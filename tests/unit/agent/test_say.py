from __future__ import annotations

import pytest

from airflow_llmsched.agent.say import say


def test_a_word_is_a_line_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    say("llmsched: node n0: it's 100% full")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "llmsched: node n0: it's 100% full\n")
