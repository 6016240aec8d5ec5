from __future__ import annotations

from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.domain.preflight import CheckOutcome, NodeChecks, PreflightRecord, PreflightRound
from airflow_llmsched.provider.preflight_run import _read, results

LINE = 'LLMSCHED-PREFLIGHT {"name":"compute","outcome":"ok","detail":"","value":2.5e12,"unit":"FLOP/s"}'


def test_lines_of_checks_are_told_from_what_libraries_write() -> None:
    text = f'[Gloo] Rank 0 is connected{LINE}\nnoise\nLLMSCHED-PREFLIGHT {{"name":"cut…\n{LINE.replace("ok", "bad")}'
    found = _read(text)
    assert [(check.name, check.outcome) for check in found] == [
        ("compute", CheckOutcome.OK),
        ("compute", CheckOutcome.BAD),
    ]


def test_a_rank_cannot_say_what_is_no_check() -> None:
    assert _read('LLMSCHED-PREFLIGHT {"name":"x","outcome":"splendid"}\nLLMSCHED-PREFLIGHT []') == ()


def test_xcom_gets_counts_and_reasons_only() -> None:
    checked = NodeChecks(node=NodeId("a"), checks=_read(LINE))
    record = PreflightRecord(
        generation=0,
        rounds=(PreflightRound(nodes=(), unfit={NodeId("b"): "lost"}), PreflightRound(nodes=(checked,))),
    )
    assert results(record) == {"rounds": 2, "num_nodes": 1, "unfit": {"b": "lost"}}
