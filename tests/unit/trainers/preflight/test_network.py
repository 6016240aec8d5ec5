from __future__ import annotations

from pathlib import Path

from airflow_llmsched.trainers.preflight.network import check_cards


def cards(root: Path, **states: str) -> Path:
    for name, state in states.items():
        port = root / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
    return root


def test_as_many_cards_as_the_node_has_must_be_up(tmp_path: Path) -> None:
    root = cards(tmp_path, mlx5_0="4: ACTIVE", mlx5_1="1: DOWN")
    found = check_cards(num_nics=2, root=root)
    assert (found["outcome"], found["detail"], found["value"]) == (
        "bad",
        "1 of 2 RDMA cards are up: mlx5_1 is DOWN",
        1,
    )
    assert check_cards(num_nics=1, root=root)["outcome"] == "ok"


def test_a_node_whose_cards_are_all_gone_is_bad(tmp_path: Path) -> None:
    assert check_cards(num_nics=8, root=tmp_path / "absent")["detail"] == "0 of 8 RDMA cards are up"


def test_nothing_is_expected_of_a_node_of_which_nothing_is_known(tmp_path: Path) -> None:
    assert check_cards(num_nics=0, root=tmp_path)["outcome"] == "skipped"
    found = check_cards(num_nics=0, root=cards(tmp_path, rdmap0="4: ACTIVE", rdmap1="2: INIT"))
    assert (found["outcome"], found["detail"], found["value"]) == ("ok", "rdmap1 is INIT", 1)
