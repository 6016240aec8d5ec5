"""What a person sees who asks which machines plans can be made for."""

from __future__ import annotations

from typer.testing import CliRunner

from airflow_llmsched.cli.main import app
from airflow_llmsched.planner.perf import hardware, hardware_page

RUNNER = CliRunner()


def test_every_shape_is_listed_with_its_cloud_and_accelerators() -> None:
    output = RUNNER.invoke(app, ["hardware"]).output
    assert all(name in output for name in hardware.node_shapes())
    assert "8 x h100-sxm" in output
    assert "azure" in output


def test_one_shape_is_shown_with_levels_tiers_and_sources() -> None:
    output = " ".join(RUNNER.invoke(app, ["hardware", "gb200-nvl72"]).output.replace("│", " ").split())
    assert "72 at 900 GB/s over nvswitch4" in output
    assert "host dram" in output
    assert "docs.nvidia.com DGX GB200 hardware" in output


def test_an_unknown_shape_is_an_error_that_names_the_known_ones() -> None:
    result = RUNNER.invoke(app, ["hardware", "p5.49xlarge"])
    assert result.exit_code == 1
    assert "known:" in result.stderr
    assert "p5.48xlarge" in result.stderr


def test_the_reference_page_is_printed_when_asked() -> None:
    assert RUNNER.invoke(app, ["hardware", "--markdown"]).output == hardware_page.markdown()
