from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmsched.engines.wirings import NO_WIRINGS, WiringFiles
from airflow_llmsched.errors import DataError, SpecError
from tests.support.wirings import TWO_SOCKETS


def test_what_joins_the_devices_of_a_node_is_read_for_each_shape(tmp_path: Path) -> None:
    file = tmp_path / "h100.topo"
    file.write_text(TWO_SOCKETS, encoding="utf-8")
    found = WiringFiles.of({"dgx-h100": str(file)}).read()
    assert [gpu.numa_index for gpu in found["dgx-h100"].gpus] == [0, 1, 0, 1]
    assert NO_WIRINGS.read() == WiringFiles.of({}).read() == {}


@pytest.mark.parametrize("plain", [["/a"], {"dgx-h100": "h100.topo"}, {"dgx-h100": None}, "/a"])
def test_what_is_no_path_by_shape_is_refused(plain: object) -> None:
    with pytest.raises(SpecError, match="wirings"):
        WiringFiles.of(plain)


def test_a_file_that_is_not_there_or_says_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        WiringFiles.of({"x": str(tmp_path / "none")}).read()
    for text in (b"GPU0 and others", b"\xff\xfe"):
        (tmp_path / "odd").write_bytes(text)
        with pytest.raises(DataError, match="odd: "):
            WiringFiles.of({"x": str(tmp_path / "odd")}).read()
