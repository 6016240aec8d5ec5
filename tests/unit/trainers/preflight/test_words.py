from __future__ import annotations

import json
import string

from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.agent.spool import MAX_LINE_LENGTH
from airflow_llmsched.trainers.preflight.words import MARK, Options, bad, line

PRINTABLE = st.text(alphabet=string.printable, max_size=2000)


def test_options_come_back_from_the_environment_as_they_were() -> None:
    options = Options(vendor="nvidia", num_nics=8, folders=("/a b", "/c"), nccl_tests="/opt/all_reduce_perf")
    assert Options.from_json(options.to_json()) == options


@given(PRINTABLE, st.floats(min_value=0, max_value=1e18))
def test_no_line_is_long_enough_to_be_cut_whatever_a_tool_wrote(detail: str, value: float) -> None:
    check = bad("storage /" + "x" * 500, detail, value=value, unit="bytes/s")
    text = line(check)
    assert len(text) <= MAX_LINE_LENGTH
    assert len(text.splitlines()) == 1
    assert json.loads(text.removeprefix(MARK)) == check
