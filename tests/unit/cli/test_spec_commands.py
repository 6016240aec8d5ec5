"""What a person sees who checks a spec or asks for its schema."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.specs import json_schema, reference

RUNNER = CliRunner()


def test_schema_prints_the_json_schema() -> None:
    result = RUNNER.invoke(app, ["schema"])
    assert result.exit_code == 0
    assert json.loads(result.output) == json_schema.json_schema()


def test_schema_prints_the_reference_page_when_asked() -> None:
    assert RUNNER.invoke(app, ["schema", "--markdown"]).output == reference.markdown()


def test_schema_prints_one_page_at_a_time() -> None:
    result = RUNNER.invoke(app, ["schema", "--fleet", "--topology"])
    assert result.exit_code == 2
    assert "are two pages" in result.output


def test_check_says_in_short_what_a_sound_spec_asks_for(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text(reference.example("transformer.yaml"))
    result = RUNNER.invoke(app, ["check", str(spec)])
    assert result.exit_code == 0
    for part in ("4,022,468,096 parameters", "256 sequences", "500G tokens", "60000 USD", "within 14d", "16 to 128"):
        assert part in result.output


def test_check_says_whose_turn_a_run_waits_for(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    text = "\n".join(line for line in reference.example("transformer.yaml").splitlines() if "queue:" not in line)
    spec.write_text(f"{text}\nqueue: {{team: speech, priority: urgent, max_wait: 2d}}\n")
    result = RUNNER.invoke(app, ["check", str(spec)], env={"COLUMNS": "300"})
    assert "team speech, class urgent, waits for at most 2d" in " ".join(result.output.split())


def test_check_says_what_a_token_takes_and_how_much_is_trained(tmp_path: Path) -> None:
    text = reference.example("transformer.yaml").replace("qwen3-4b", "llama-3.1-8b")
    spec = tmp_path / "s.yaml"
    spec.write_text(text)
    whole = " ".join(RUNNER.invoke(app, ["check", str(spec)], env={"COLUMNS": "300"}).output.split())
    assert "131,072 bytes of keys and values" in whole
    assert "GFLOP forward" in whole
    assert "(both passes without them, the 6 N of some MFU: 45.03)" in whole
    assert "trained" not in whole
    from_base = text.replace("keep_last: 4}", "keep_last: 4, init_from: s3://models/base}")
    spec.write_text(f"{from_base}\nstage: lora\nlora: {{rank: 8, targets: [query, value]}}\n")
    adapted = " ".join(RUNNER.invoke(app, ["check", str(spec)], env={"COLUMNS": "300"}).output.split())
    assert f"{32 * 8 * (2 * 4096 + 4096 + 1024):,} trained" in adapted


def test_check_shows_a_job_that_is_no_transformer(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text(reference.example("stated_traffic.yaml"))
    result = RUNNER.invoke(app, ["check", str(spec)])
    assert result.exit_code == 0
    assert "states its own traffic" in result.output


def test_check_shows_a_name_as_it_is_written(tmp_path: Path) -> None:
    text = reference.example("stated_traffic.yaml").replace(
        "ranking model with a parameter server", "'[red]$(x)[/red]'"
    )
    spec = tmp_path / "s.yaml"
    spec.write_text(text)
    assert "[red]$(x)[/red]" in RUNNER.invoke(app, ["check", str(spec)]).output


def test_check_lists_every_mistake_and_fails(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text("version: 1\nname: x\nbudget: {steps: 0}\ndata: {kind: filez}\n")
    result = RUNNER.invoke(app, ["check", str(spec)])
    assert result.exit_code == 1
    assert f"error: {spec}:3: budget.steps = 0" in result.stderr
    assert f"error: {spec}:4: data.kind = 'filez'" in result.stderr
    assert "error: " in result.stderr
    assert "Traceback" not in result.output


def test_check_of_a_missing_file_fails_with_its_name(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["check", str(tmp_path / "nope.yaml")])
    assert result.exit_code == 1
    assert "nope.yaml" in result.stderr
