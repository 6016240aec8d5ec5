from __future__ import annotations

from airflow_llmsched import units


def test_binary_and_decimal_multiples_are_kept_apart():
    assert units.GIB == 2**30 == 1_073_741_824
    assert units.GB == 10**9
    assert [units.KIB, units.MIB, units.GIB, units.TIB] == [2**10, 2**20, 2**30, 2**40]
    assert [units.KB, units.MB, units.GB, units.TB] == [10**3, 10**6, 10**9, 10**12]


def test_durations_are_in_seconds():
    assert (units.MINUTE_S, units.HOUR_S, units.DAY_S) == (60, 3600, 24 * 3600)
