"""Paths start from the spec's folder, and a form's stay below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.specs.paths import PathRules


def test_relative_paths_start_from_the_folder_of_the_spec(tmp_path: Path) -> None:
    rules = PathRules(base=tmp_path, confined=False)
    assert rules.resolve("data/x") == str(tmp_path / "data" / "x")
    assert rules.resolve("../y") == str(tmp_path.parent / "y")
    assert rules.resolve("/etc/x") == "/etc/x"


def test_uris_are_left_alone_but_file_uris_are_paths(tmp_path: Path) -> None:
    rules = PathRules(base=tmp_path, confined=True)
    assert rules.resolve("s3://bucket/../x") == "s3://bucket/../x"
    assert rules.resolve(f"file://{tmp_path}/a%20b") == str(tmp_path / "a b")


@pytest.mark.parametrize(
    "text", ["..", "../x", "a/../../x", "/etc/passwd", "file:///etc/passwd", "FILE:///etc", "file:///%2e%2e/x"]
)
def test_a_confined_path_that_leaves_the_folder_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="leaves"):
        PathRules(base=tmp_path, confined=True).resolve(text)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="leaves"):
        PathRules(base=tmp_path / "inside", confined=True).resolve("link/x")


def test_confined_paths_below_the_folder_are_fine_however_written(tmp_path: Path) -> None:
    rules = PathRules(base=tmp_path, confined=True)
    assert rules.resolve("a/../b") == str(tmp_path / "b")
    assert rules.resolve(str(tmp_path / "b")) == str(tmp_path / "b")


def test_without_a_folder_only_an_absolute_path_outside_a_form_is_known() -> None:
    assert PathRules(base=None, confined=False).resolve("/data") == "/data"
    for rules, text in ((PathRules(base=None, confined=False), "data"), (PathRules(base=None, confined=True), "/data")):
        with pytest.raises(ValueError, match="no spec file"):
            rules.resolve(text)


@pytest.mark.parametrize("text", ["~/x", "a\0b", "file://host/x"])
def test_paths_that_mean_something_else_elsewhere_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"write|NUL"):
        PathRules(base=tmp_path, confined=False).resolve(text)
