from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.agent.grant import Grant

SECRET = "X-Amz-Signature=5ec7e7"


def plain(first_seq: int = 1, num: int = 8, **changes: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "first_seq": first_seq,
        "up": [f"https://s/{first_seq + index}?{SECRET}" for index in range(num)],
        "down": {name: f"https://s/{name}?{SECRET}" for name in ("lease", "orders", "revoked", "renewal")},
        "issued_at_s": 100.0,
        "expires_at_s": 200.0,
        **changes,
    }


def test_reports_have_the_places_from_the_first_on() -> None:
    grant = Grant.parse(plain(first_seq=5, num=3))
    assert [grant.url_of(seq) and grant.url_of(seq).split("?")[0] for seq in (4, 5, 7, 8)] == [  # type: ignore[union-attr]
        None,
        "https://s/5",
        "https://s/7",
        None,
    ]
    assert [grant.num_left(seq) for seq in (1, 5, 7, 8, 99)] == [3, 3, 1, 0, 0]


@pytest.mark.parametrize(
    "changes",
    [
        {"issued_at_s": None},
        {"up": 3},
        {"down": {}},
        {"expires_at_s": "soon"},
        {"up": [f"file:///etc/passwd?{SECRET}"]},
        {"up": [7]},
    ],
)
def test_damaged_grant_is_refused_without_showing_a_url(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the grant of URLs") as caught:
        Grant.parse(plain(**changes))
    assert SECRET not in str(caught.value)


def test_next_grant_is_due_at_half_of_the_places_or_of_the_time() -> None:
    grant = Grant.parse(plain())
    assert not grant.is_due(4, now_s=149.0)
    assert grant.is_due(5, now_s=149.0)
    assert grant.is_due(1, now_s=150.0)


def test_interval_doubles_each_time_half_of_the_rest_is_used() -> None:
    grant = Grant.parse(plain(num=8))
    assert [grant.pace(seq) for seq in range(1, 10)] == [1, 1, 1, 1, 2, 2, 4, 8, 8]


@given(num=st.integers(2, 300), seq=st.integers(1, 400))
def test_pace_never_falls_and_is_1_at_first(num: int, seq: int) -> None:
    grant = Grant.parse(plain(num=num))
    assert grant.pace(1) == 1.0
    assert grant.pace(seq) <= grant.pace(seq + 1)
