from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched.domain.workload import DatasetKind, DatasetSpec
from airflow_llmsched.errors import DataError, SpecError
from airflow_llmsched.staging.corpus import TextFile, read_blocks, read_corpus
from airflow_llmsched.staging.corpus import _held_out_contents as held_out_contents


def files_spec(source: Path | str, **changes: object) -> DatasetSpec:
    values: dict[str, object] = {"kind": DatasetKind.FILES, "source": str(source), "held_out_ratio": 0.2}
    return DatasetSpec(**(values | changes))  # type: ignore[arg-type]


def write_texts(folder: Path, texts: dict[str, bytes]) -> Path:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return folder


TEXTS = {f"book{index}/chapter.txt": b"%d " % index * (50 + index) for index in range(20)}


def test_the_standard_library_is_found_without_tests_or_installed_packages() -> None:
    corpus = read_corpus(DatasetSpec(kind=DatasetKind.PYTHON_STDLIB, max_bytes=2_000_000))
    everything = read_corpus(DatasetSpec(kind=DatasetKind.PYTHON_STDLIB))

    names = {file.name for file in (*everything.train, *everything.held_out)}
    assert "asyncio/base_events.py" in names
    assert not [name for name in names if "site-packages" in name or "/test/" in f"/{name}" or "/tests/" in name]
    assert all(name.endswith(".py") for name in names)
    assert everything.source == sysconfig.get_paths()["stdlib"]
    sampled_bytes = sum(file.num_bytes for file in (*corpus.train, *corpus.held_out))
    assert 1_900_000 < sampled_bytes <= 2_000_000


def test_files_come_in_name_order_and_the_same_every_time(tmp_path: Path) -> None:
    write_texts(tmp_path, TEXTS)

    once, again = read_corpus(files_spec(tmp_path)), read_corpus(files_spec(tmp_path))

    assert once == again
    assert [file.name for file in once.train] == sorted(file.name for file in once.train)
    assert {file.name for file in (*once.train, *once.held_out)} == set(TEXTS)


def test_a_trailing_slash_changes_nothing(tmp_path: Path) -> None:
    write_texts(tmp_path, TEXTS)

    assert read_corpus(files_spec(f"{tmp_path}/")) == read_corpus(files_spec(tmp_path))


def test_copies_of_a_held_out_text_are_not_trained_on(tmp_path: Path) -> None:
    write_texts(tmp_path, TEXTS)
    held_out = read_corpus(files_spec(tmp_path)).held_out
    assert held_out
    for index, file in enumerate(held_out):
        write_texts(tmp_path, {f"copy{index}.txt": file.path.read_bytes()})

    corpus = read_corpus(files_spec(tmp_path, held_out_ratio=0.4))

    assert corpus.held_out
    assert not {file.sha256 for file in corpus.held_out} & {file.sha256 for file in corpus.train}


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=2, max_size=40),
    ratio=st.floats(0.01, 0.5),
)
def test_the_held_out_part_is_never_empty_nor_larger_than_asked_unless_one_file_is(
    sizes: list[int], ratio: float
) -> None:
    files = [
        TextFile(name=str(index), path=Path(str(index)), num_bytes=size, sha256=f"{index:064x}")
        for index, size in enumerate(sizes)
    ]

    chosen = held_out_contents(files, ratio=ratio)

    held_out_bytes = sum(file.num_bytes for file in files if file.sha256 in chosen)
    assert 0 < len(chosen) < len(files)
    assert held_out_bytes <= max(ratio * sum(sizes), min(sizes))


def test_nothing_is_held_out_when_nothing_is_asked_for(tmp_path: Path) -> None:
    corpus = read_corpus(files_spec(write_texts(tmp_path, TEXTS), held_out_ratio=0.0))

    assert corpus.held_out == ()
    assert len(corpus.train) == len(TEXTS)


@pytest.mark.parametrize(
    ("texts", "changes", "field"),
    [
        ({}, {}, "data.source"),
        ({"empty.txt": b""}, {}, "data.source"),
        ({"only.txt": b"one file"}, {}, "data.held_out_ratio"),
        ({"a.txt": b"same", "b.txt": b"same"}, {}, "data.held_out_ratio"),
        (TEXTS, {"max_bytes": 3}, "data.max_bytes"),
    ],
)
def test_too_little_text_is_refused_by_the_field_to_change(
    tmp_path: Path, texts: dict[str, bytes], changes: dict[str, object], field: str
) -> None:
    write_texts(tmp_path, texts)

    with pytest.raises(SpecError) as caught:
        read_corpus(files_spec(tmp_path, **changes))

    assert caught.value.path == field


@pytest.mark.parametrize("source", [None, "", "/no/such/folder", "a name with spaces, $(touch x) and 'quotes'"])
def test_a_source_that_is_no_folder_is_refused(source: str | None) -> None:
    with pytest.raises(SpecError, match=r"data\.source"):
        read_corpus(DatasetSpec(kind=DatasetKind.FILES, source=source))


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.txt"):
        list(read_blocks(tmp_path / "gone.txt"))
