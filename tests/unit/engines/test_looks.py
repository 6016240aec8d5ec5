from __future__ import annotations

import pytest

from airflow_llmsched.engines.looks import looking
from airflow_llmsched.errors import AbandonedError, CouldNotLookError, DataError


@pytest.mark.parametrize(
    "error", [OSError("gone"), ValueError("torn"), KeyError("body"), TypeError("no number"), DataError("odd")]
)
def test_whatever_cannot_be_read_was_not_looked_at(error: Exception) -> None:
    with pytest.raises(CouldNotLookError, match=r"local engine: poll: .*; look again"), looking("local", "poll"):
        raise error


def test_what_was_decided_is_no_failed_look() -> None:
    with pytest.raises(AbandonedError), looking("local", "submit"):
        raise AbandonedError("given up")
