from __future__ import annotations

import pytest

from airflow_llmsched.control.allowances import Allowances
from airflow_llmsched.errors import SpecError, StoreError
from tests.support.memory_store import MemoryStore
from tests.support.sim_house import RUN


def test_the_last_word_counts_and_nobody_said_anything_before_the_first() -> None:
    store = MemoryStore()
    allowances = Allowances(store, RUN)
    assert allowances.newest_usd() is None
    allowances.allow(100.0, at_s=1.0, by="ada")
    allowances.allow(80.0, at_s=2.0, by="bob")
    newest = Allowances(store, RUN).newest()
    assert newest is not None
    assert (newest.max_usd, newest.at_s, newest.by) == (80.0, 2.0, "bob")


def test_words_spoken_at_the_same_time_are_both_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    first, second = Allowances(store, RUN), Allowances(store, RUN)
    numbers, asked = second._numbers, []

    def outrun() -> list[int]:
        found = numbers()
        if not asked:
            asked.append(True)
            first.allow(1.0, at_s=1.0)
        return found

    monkeypatch.setattr(second, "_numbers", outrun)
    second.allow(2.0, at_s=1.0)
    assert first.newest_usd() == 2.0
    assert len(list(store.list(f"runs/{RUN}/allowances/"))) == 2


@pytest.mark.parametrize("max_usd", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_sum_is_refused(max_usd: float) -> None:
    store = MemoryStore()
    with pytest.raises(SpecError, match="dollars in all"):
        Allowances(store, RUN).allow(max_usd, at_s=1.0)
    assert Allowances(store, RUN).newest() is None


def test_a_damaged_word_is_no_leave_to_spend() -> None:
    store = MemoryStore()
    store.put(f"runs/{RUN}/allowances/000001.json", b"{")
    with pytest.raises(StoreError, match="is damaged"):
        Allowances(store, RUN).newest_usd()
