from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.agent.link import DirectoryLink, Down
from airflow_llmsched.agent.spool import LineReader, write_json

REPORT = {"node": "n0", "seq": 1}


@pytest.fixture
def down(tmp_path: Path) -> Path:
    folder = tmp_path / "down"
    folder.mkdir()
    return folder


def test_nothing_has_come_down_a_channel_that_nobody_wrote_to(tmp_path: Path) -> None:
    assert DirectoryLink(str(tmp_path), node="n0").down() == Down(None, None)


def test_reports_are_lines_of_the_nodes_own_file(tmp_path: Path) -> None:
    link = DirectoryLink(str(tmp_path), node="n0")
    assert link.ready()
    link.send(REPORT)
    assert link.close({**REPORT, "seq": 2}, limit_s=0.0)
    assert [each["seq"] for each in LineReader(str(tmp_path / "up" / "n0.jsonl")).read()] == [1, 2]


def test_report_that_could_not_be_written_goes_before_the_next(tmp_path: Path) -> None:
    link = DirectoryLink(str(tmp_path), node="n0")
    assert link.ready()
    (tmp_path / "up" / "n0.jsonl").mkdir()
    with pytest.raises(OSError, match=r"n0\.jsonl"):
        link.send(REPORT)
    with pytest.raises(OSError, match=r"n0\.jsonl"):
        link.ready()
    (tmp_path / "up" / "n0.jsonl").rmdir()
    assert link.ready()
    link.send({**REPORT, "seq": 2})
    assert [each["seq"] for each in LineReader(str(tmp_path / "up" / "n0.jsonl")).read()] == [1, 2]


def test_lease_renews_until_it_is_revoked(tmp_path: Path, down: Path) -> None:
    link = DirectoryLink(str(tmp_path), node="n0")
    write_json(down / "lease.json", {"until_s": 100.0})
    assert link.down().lease_until_s == 100.0
    write_json(down / "revoked.json", {"v": 1, "at_s": None})
    write_json(down / "lease.json", {"until_s": 110.0})
    assert link.down().lease_until_s == 110.0
    write_json(down / "revoked.json", {"v": 1, "at_s": 105.0})
    write_json(down / "lease.json", {"until_s": 200.0})
    assert link.down().lease_until_s == 110.0


def test_renewal_whose_revocation_cannot_be_looked_up_is_none(tmp_path: Path, down: Path) -> None:
    (down / "revoked.json").write_text("{")
    write_json(down / "lease.json", {"until_s": 100.0})
    assert DirectoryLink(str(tmp_path), node="n0").down().lease_until_s is None


HUGE = '{"until_s":1' + "0" * 400 + "}"
DEEP = "[" * 99_999


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"until_s":"soon"}', '{"until_s":null}', "{}", '{"until_s":1e999}', '{"until_s":NaN}', HUGE, DEEP],
)
def test_unreadable_lease_renews_nothing(tmp_path: Path, down: Path, content: str) -> None:
    (down / "lease.json").write_text(content)
    assert DirectoryLink(str(tmp_path), node="n0").down().lease_until_s is None


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"checkpoint_seq":1}', '{"checkpoint_seq":"x","stop":null}', '{"checkpoint_seq":{}}'),
        *('{"checkpoint_seq":1e999,"stop":"x"}', '{"a":' * 99_999),
    ],
)
def test_unreadable_orders_are_none(tmp_path: Path, down: Path, content: str) -> None:
    (down / "orders.json").write_text(content)
    assert DirectoryLink(str(tmp_path), node="n0").down().orders is None


def test_orders_of_an_older_control_have_no_interval(tmp_path: Path, down: Path) -> None:
    write_json(down / "orders.json", {"v": 1, "checkpoint_seq": 2, "stop": "enough"})
    orders = DirectoryLink(str(tmp_path), node="n0").down().orders
    assert orders == {"checkpoint_seq": 2, "stop": "enough", "checkpoint_interval_s": None}
