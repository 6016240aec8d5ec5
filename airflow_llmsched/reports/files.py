"""Where a report is kept: ``report.html`` for people and ``report.json`` for programs, side by side."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_llmsched import codec
from airflow_llmsched.domain.run_report import RunReport
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import DataError
from airflow_llmsched.reports.html import render

_WRITE = EffectPoint("report.write")

FORMAT_VERSION = 1
HTML_NAME = "report.html"
JSON_NAME = "report.json"


def write(report: RunReport, directory: Path) -> tuple[Path, Path]:
    """Write both files and return their paths, HTML first. A reader sees an old file or a new one, never half of one.

    Raises:
        OSError: The folder cannot be written; an older report is still whole.
    """
    json_path = directory / JSON_NAME
    html_path = directory / HTML_NAME
    replace_file(json_path, to_json(report))
    replace_file(html_path, render(report).encode())
    return html_path, json_path


def read(path: Path) -> RunReport:
    """Read a report from its JSON file, or from the folder that holds it.

    Raises:
        DataError: There is no report, it is of another version, or it is damaged.
    """
    file = path / JSON_NAME if path.is_dir() else path
    try:
        stored: Any = codec.parse_json(file.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"no report at {file}: it is written when a run ends") from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the report {file}: {error}. Write it again from the run's journal") from error
    version = stored.get("v") if isinstance(stored, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(f"{file} is no report of version {FORMAT_VERSION} (found {version!r}): use a matching release")
    try:
        return codec.from_plain(RunReport, stored.get("report"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"the report {file} is damaged: {where}: {first['msg']}. Write it again from the run"
        ) from error


def to_json(report: RunReport) -> bytes:
    """Return the report in its stored form."""
    return b'{"v":%d,"report":%b}' % (FORMAT_VERSION, codec.to_json(report))


def write_html(report: RunReport, path: Path) -> None:
    """Write only the page, to ``path``."""
    replace_file(path, render(report).encode())


@_WRITE
def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file, so that a reader finds the old one or the new one. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
