from __future__ import annotations

import pytest

from airflow_llmsched.domain.identity import AttemptKey, RunKey
from airflow_llmsched.domain.switches import SwitchRequest

GANG = AttemptKey(run=RunKey("ls-x"), generation=1, attempt=2)


@pytest.mark.parametrize(
    "wrong", [{"num_trees": 0}, {"num_trees": -1, "traffic_class": 1}, {"num_trees": 1, "domains": ()}]
)
def test_a_request_for_nothing_is_refused_with_the_gang(wrong) -> None:
    with pytest.raises(ValueError, match="ls-x-g1-a2 asks for nothing"):
        SwitchRequest(**{"gang": GANG, "domains": ((),), **wrong})


def test_a_class_alone_is_something() -> None:
    assert SwitchRequest(gang=GANG, domains=((),), traffic_class=106).num_trees == 0
