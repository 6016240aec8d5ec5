from __future__ import annotations

import contextlib
import io
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_llmsched.checkpoints import dcp_metadata
from airflow_llmsched.checkpoints.dcp_metadata import MetadataError, StoredItem, parse_metadata
from tests.support.checkpoint_files import DCP, Call, Instance, to_pickle
from tests.support.checkpoint_files import dcp_metadata as make

WHOLE = make(
    {"model.w": ("__0_0.distcp", 0, 100), "step": ("__0_0.distcp", 100, 20), "optim.m": ("__1_0.distcp", 0, 7)}
)


def metadata_with(**state: object) -> bytes:
    return to_pickle(Instance(f"{DCP}.metadata", "Metadata", {"state_dict_metadata": {}, "storage_data": {}, **state}))


def test_items_and_needed_sizes_are_read() -> None:
    found = parse_metadata(WHOLE)
    assert found.needed_bytes() == {"__0_0.distcp": 120, "__1_0.distcp": 7}
    assert found.names == {"model.w", "step", "optim.m"}
    assert not found.only_tensors
    assert found.items[0] == StoredItem(
        path="__0_0.distcp", offset_bytes=0, num_bytes=100, tensor=True, transformed=False
    )
    assert not found.items[1].tensor


def test_a_state_of_tensors_only_is_told_apart() -> None:
    assert parse_metadata(make({"w": ("__0_0.distcp", 0, 1)})).only_tensors


@pytest.mark.torch
def test_what_torch_writes_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 8, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 5, "rng": torch.get_rng_state()}
    dcp.save(state, checkpoint_id=tmp_path / "step-5", no_dist=True)
    data = (tmp_path / "step-5" / ".metadata").read_bytes()
    theirs, ours = pickle.loads(data), parse_metadata(data)
    assert ours.names == set(theirs.state_dict_metadata)
    assert sorted((item.path, item.offset_bytes, item.num_bytes) for item in ours.items) == sorted(
        (info.relative_path, info.offset, info.length) for info in theirs.storage_data.values()
    )
    assert ours.needed_bytes() == {"__0_0.distcp": (tmp_path / "step-5" / "__0_0.distcp").stat().st_size}


ATTACKS = {
    "system": Call("os", "system", ("touch {marker}",)),
    "posix": Call("posix", "system", ("touch {marker}",)),
    "eval": Call("builtins", "eval", ("open({marker!r}, 'w').close()",)),
    "open": Call("builtins", "open", ("{marker}", "w")),
    "getattr": Call("builtins", "getattr", (Call("builtins", "__import__", ("os",)), "system")),
    "subprocess": Call("subprocess", "check_call", (["touch", "{marker}"],)),
    "torch's own": Call("torch.hub", "load", ("/", "x")),
    "a dotted name": Call(f"{DCP}.metadata", "Metadata.__init__.__globals__", ()),
    "a torch constant that is none": Call("torch", "load", ("{marker}",)),
    "a module object": Call("torch", "os", ()),
}


def spell(value: object, marker: str) -> object:
    if isinstance(value, Call):
        return Call(value.module, value.name, tuple(spell(each, marker) for each in value.arguments))
    if isinstance(value, list):
        return [spell(each, marker) for each in value]
    return value.replace("{marker!r}", repr(marker)).replace("{marker}", marker) if isinstance(value, str) else value


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("large", [False, True])
def test_nothing_in_the_pickle_is_run_and_what_it_names_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, large: bool
) -> None:
    if large:
        monkeypatch.setattr(dcp_metadata, "_SLOW_LIMIT_BYTES", 0)
    marker = tmp_path / "executed"
    attack = spell(ATTACKS[name], str(marker))
    assert isinstance(attack, Call)
    for data in (to_pickle(attack), metadata_with(planner_data=attack)):
        with pytest.raises(MetadataError, match="could run foreign code"):
            parse_metadata(data)
    assert not marker.exists()


def test_the_attack_would_have_worked_on_the_plain_reader(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    pickle.loads(to_pickle(spell(ATTACKS["system"], str(marker))))
    assert marker.exists()


def test_a_pickle_made_by_reduce_is_caught_too(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {marker}",)

    with pytest.raises(MetadataError, match=r"names posix\.system"):
        parse_metadata(pickle.dumps(Evil()))
    assert not marker.exists()


def test_a_stand_in_runs_nothing_when_it_is_called_built_or_hashed() -> None:
    made = Call("torch.serialization", "_get_layout", ("torch.strided",))
    found = parse_metadata(metadata_with(planner_data={"layout": made, "size": Call("torch", "Size", ((2, 3),))}))
    assert found.items == ()


def test_a_persistent_reference_is_refused() -> None:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.persistent_id = lambda value: "id" if value == "x" else None  # type: ignore[method-assign]
    pickler.dump(["x"])
    with pytest.raises(MetadataError, match="persistent reference"):
        parse_metadata(buffer.getvalue())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut short or damaged"),
        (WHOLE[:-1], "cut short or damaged"),
        (b"\x80\x04K\x01.", "holds a int"),
        (to_pickle({}), "holds a dict"),
        (to_pickle(Instance(f"{DCP}.metadata", "MetadataIndex", {})), "holds a MetadataIndex"),
        (metadata_with(storage_data=None), "lists no stored items"),
        (metadata_with(storage_data={"k": 1}), "without file, offset or length"),
        (b"not a pickle at all", "cut short or damaged"),
    ],
)
def test_what_is_no_metadata_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(MetadataError, match=reason):
        parse_metadata(data)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "\ud800"])
def test_a_file_outside_the_checkpoint_is_refused(path: str) -> None:
    with pytest.raises(MetadataError, match="not below the checkpoint"):
        parse_metadata(make({"w": (path, 0, 1)}))


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (5, -1)])
def test_a_negative_place_is_refused(offset: int, length: int) -> None:
    with pytest.raises(MetadataError, match="negative"):
        parse_metadata(make({"w": ("__0_0.distcp", offset, length)}))


def test_both_readers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = parse_metadata(WHOLE)
    monkeypatch.setattr(dcp_metadata, "_SLOW_LIMIT_BYTES", 0)
    assert parse_metadata(WHOLE) == slow


@settings(max_examples=400, deadline=None, derandomize=True)
@given(edits=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@example(edits=[(WHOLE.index(b"b"), ord("r"))])  # "put at index": four bytes of it made the C reader take 64 GB
def test_damage_is_never_more_than_a_metadata_error(edits: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for position, value in edits:
        data[position] = value
    with contextlib.suppress(MetadataError):  # anything else fails the test
        parse_metadata(bytes(data))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_never_more_than_a_metadata_error(data: bytes) -> None:
    with pytest.raises(MetadataError):
        parse_metadata(data)
