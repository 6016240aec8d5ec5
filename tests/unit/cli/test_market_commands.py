from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.prices.snapshots import MarketSnapshot, encode_snapshot, snapshot_key
from airflow_llmsched.units import HOUR_S
from tests.support.market import SPOT, offer_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two days of hourly snapshots: a spot price that moves, and one on demand that does not."""
    store, now_s = open_store(str(tmp_path)), time.time()
    for hour in range(48):
        at_s = now_s - (48 - hour) * HOUR_S
        offers = (offer_of(3.0 + hour % 3, SPOT, shape="p5.48xlarge"), offer_of(9.0, shape="p4d.24xlarge", num_nodes=7))
        store.put(snapshot_key(at_s), encode_snapshot(MarketSnapshot(taken_at_s=at_s, offers=offers)))
    return tmp_path


def market(*arguments: object):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["market", *map(str, arguments)])


def test_what_capacity_costs_is_shown_with_the_band_of_its_price(root: Path) -> None:
    shown = market("--state-root", root, "--after", "6h")
    assert shown.exit_code == 0, shown.output
    spot, steady = (next(line for line in shown.output.splitlines() if name in line) for name in ("p5.48", "p4d.24"))
    assert "in 6h" in shown.output
    assert "9.00 to 9.00" in steady
    assert " 7 " in steady
    assert "5.00" in spot


def test_programs_get_it_as_json_of_the_shapes_that_they_ask_for(root: Path) -> None:
    shown = market("--state-root", root, "--shape", "p5.48xlarge", "--json")
    (found,) = json.loads(shown.output)
    assert found["num_seen"] == 48
    low, high = found["forecast"]["low_usd_per_hour"], found["forecast"]["high_usd_per_hour"]
    assert low < found["forecast"]["usd_per_hour"] <= high


def test_no_snapshots_a_time_that_is_none_and_a_damaged_file_are_errors(root: Path, tmp_path: Path) -> None:
    assert "schedule dags/refresh_market.py" in market("--state-root", tmp_path / "other").output
    assert market("--state-root", root, "--shape", "p9").exit_code == 1
    assert "--after" in market("--state-root", root, "--after", "soon").output
    assert "must be above 0" in market("--state-root", root, "--after", "0s").output
    (root / snapshot_key(time.time())).write_text("{}")
    assert "no market snapshot" in market("--state-root", root).output
