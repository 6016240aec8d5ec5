"""The way in: shipped specs load, every mistake is told at once with its line, nothing else ever escapes."""

from __future__ import annotations

import copy
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmsched import codec
from airflow_llmsched.domain.workload import WorkloadSpec
from airflow_llmsched.errors import SpecError, SpecErrors
from airflow_llmsched.specs import loader
from tests.support.specs import SMALL, small, steady

MINIMAL = """\
version: 1
name: x
model: byte-gpt-1m
data: {kind: python_stdlib}
batch: {sequence_length: 128, global_batch: 32 sequences}
budget: {steps: 10}
"""


def refuse(text: str, **options: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        loader.loads(text, **options)
    return caught.value


def test_the_demo_spec_says_what_the_demo_runs(checkout: Path) -> None:
    spec = loader.load(checkout / "dags" / "specs" / "byte_gpt_demo.yaml")
    assert spec.model is not None
    assert (spec.model.vocab_size, spec.parallelism.zero_stage) == (256, 3)
    [phase] = spec.batch
    # the global batch must survive the loss of a node: 4 ranks, then 2
    assert phase.num_sequences % (4 * (spec.parallelism.micro_batch_size or 1)) == 0
    assert (spec.capacity.min_ranks, spec.capacity.max_ranks) == (2, 4)
    assert spec.checkpoint.interval_steps == 30
    assert spec.evaluation is not None
    assert spec.evaluation.max_loss is not None


def test_the_commented_example_loads(checkout: Path) -> None:
    spec = loader.load(str(checkout / "dags" / "specs" / "llama_8b.yaml"))
    assert [phase.tokens_per_step for phase in spec.batch] == [4 * 2**20, 8 * 2**20, 16 * 2**20]
    assert spec.budget.num_tokens == 2 * 10**12


def test_every_mistake_of_a_file_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        textwrap.dedent("""\
            version: 1
            name: x
            modle: byte-gpt-1m
            model: byte-gpt-2
            data:
              kind: filez
              held_out: 5
            batch:
              sequence_length: 128
              global_batch: 32 sequences
              schedule:
                - from: 0
                - from: 10
            budget: {steps: 5, tokens: 1T tokens}
            evaluation:
              max_loss: .nan
            """)
    )
    with pytest.raises(SpecErrors) as caught:
        loader.load(file)
    told = [(each.line, each.path, each.value) for each in caught.value.errors]
    assert told[:-1] == [
        (3, "modle", "byte-gpt-1m"),
        (4, "model.preset", "byte-gpt-2"),
        (6, "data.kind", "filez"),
        (7, "data.held_out", 5),
        (13, "batch.schedule[1].from", 10),
        (14, "budget", None),
    ]
    assert told[-1][:2] == (16, "evaluation.max_loss")
    assert all(each.file == str(file) and each.hint for each in caught.value.errors)
    assert "7 errors" in str(caught.value)
    assert (caught.value.line, caught.value.path) == (3, "modle")


def test_one_mistake_is_one_plain_error() -> None:
    error = refuse(MINIMAL + "seed: -1\n", file="s.yaml")
    assert type(error) is SpecError
    assert str(error).startswith("s.yaml:7: seed = -1: ")


def test_a_missing_key_is_told_with_the_line_of_its_block() -> None:
    error = refuse(MINIMAL.replace("data: {kind: python_stdlib}", "data:\n  held_out: 5%"))
    assert (error.path, error.line) == ("data.kind", 4)


@pytest.mark.parametrize("text", ["[1, 2]", "just text", "3", "null"])
def test_a_spec_is_a_block_of_keys(text: str) -> None:
    assert "block of keys" in str(refuse(text))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe")
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (2**20 + 1))
    for path, says in (
        (tmp_path / "nope.yaml", "No such file"),
        (tmp_path, "cannot be read"),
        (binary, "UTF-8"),
        (huge, "bytes"),
    ):
        with pytest.raises(SpecError, match=says) as caught:
            loader.load(path)
        assert caught.value.file == str(path)
    with pytest.raises(SpecError, match="cannot be read"):
        loader.load("nul\0.yaml")


@pytest.mark.parametrize(
    "name", ["a name", 'it\'s "q"', "$(touch /tmp/x); `id` && true", "x" * 200, "../../etc/passwd"]
)
def test_a_name_of_any_text_is_only_a_label(name: str) -> None:
    assert loader.from_mapping(small({"name": name})).name == name


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        MINIMAL.replace("{kind: python_stdlib}", "{kind: files, source: ../corpus}") + "checkpoint: {root: ckpt}\n"
    )
    spec = loader.load(file)
    assert spec.data.source == str(tmp_path.parent / "corpus")
    assert spec.checkpoint.root == str(tmp_path / "ckpt")


def test_text_without_a_file_has_no_relative_paths_unless_given_a_folder(tmp_path: Path) -> None:
    text = MINIMAL + "checkpoint: {root: ckpt}\n"
    assert refuse(text).path == "checkpoint.root"
    assert loader.loads(text, base=tmp_path).checkpoint.root == str(tmp_path / "ckpt")
    assert loader.loads(MINIMAL + "checkpoint: {root: /abs}\n").checkpoint.root == "/abs"


@pytest.mark.parametrize("path", ["../x", "/etc", "a/../../b", "file:///etc"])
@pytest.mark.parametrize("key", ["data", "checkpoint.root", "model"])
def test_a_form_may_not_name_paths_outside_the_folder(tmp_path: Path, key: str, path: str) -> None:
    value: Any = {"data": {"kind": "files", "source": path}, "model": {"hf_config": path}}.get(key, path)
    with pytest.raises(SpecError, match="leaves") as caught:
        loader.from_mapping(small({key: value}), base=tmp_path)
    assert caught.value.file == "<form>"


def test_text_typed_into_a_form_is_fenced_and_a_dag_authors_mapping_is_not(tmp_path: Path) -> None:
    assert "leaves" in str(refuse(MINIMAL + "checkpoint: {root: /etc}\n", form=True, base=tmp_path))
    assert "no spec file" in str(refuse(MINIMAL + "checkpoint: {root: /etc}\n", form=True))
    spec = loader.from_mapping(small({"checkpoint.root": "/ckpt"}), form=False)
    assert spec.checkpoint.root == "/ckpt"


def test_a_form_may_name_paths_below_the_folder_and_other_stores(tmp_path: Path) -> None:
    spec = loader.from_mapping(small({"checkpoint.root": "a/b"}), base=tmp_path)
    assert spec.checkpoint.root == str(tmp_path / "a" / "b")
    assert loader.from_mapping(small({"checkpoint.root": "s3://b/x"})).checkpoint.root == "s3://b/x"


def test_a_model_may_come_from_a_config_json(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256, "vocab_size": 256}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    text = MINIMAL.replace("byte-gpt-1m", "{hf_config: tiny/config.json}")
    model = loader.loads(text, base=tmp_path).model
    assert model is not None
    assert (model.name, model.num_layers) == ("tiny", 2)


def test_mistakes_in_a_config_json_are_told_beside_those_of_the_spec(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "martian"}')
    error = refuse(MINIMAL.replace("byte-gpt-1m", "{hf_config: config.json}") + "seed: x\n", base=tmp_path)
    assert [(each.file, each.path) for each in error.errors] == [
        ("<spec>", "seed"),
        (str(tmp_path / "config.json"), "model_type"),
    ]


@pytest.mark.parametrize("model", ["{}", "{preset: byte-gpt-1m, hf_config: x}", "{name: x}"])
def test_a_model_comes_from_exactly_one_place(model: str, tmp_path: Path) -> None:
    error = refuse(MINIMAL.replace("model: byte-gpt-1m", f"model: {model}"), base=tmp_path)
    assert (error.path, error.line) == ("model", 3)
    assert "exactly one" in error.hint


def test_a_bad_shape_is_told_with_its_line() -> None:
    shape = "\n  shape: {num_layers: 1, hidden_size: 10, vocab_size: 9,\n    num_heads: 3}"
    error = refuse(MINIMAL.replace(" byte-gpt-1m", shape))
    assert (error.path, error.line, error.value) == ("model.shape.num_heads", 5, 3)


def test_overrides_replace_and_add_values_by_path(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(MINIMAL)
    spec = loader.load(
        file, overrides={"budget.deadline": "2h", "budget.max_usd": "$5", "objective": "cost", "name": "y"}
    )
    assert (spec.name, spec.budget.num_steps, spec.budget.deadline_s, spec.budget.max_usd) == ("y", 10, 7200.0, 5.0)
    assert (spec.objective.cost, spec.objective.throughput) == (1.0, 0.0)


def test_overrides_are_checked_like_the_file_and_their_paths_like_a_form(tmp_path: Path) -> None:
    for overrides, says in (
        ({"budget.deadline": 5}, "bare number"),
        ({"budgt.deadline": "5h"}, "did you mean 'budget'"),
        ({"name.x": 1}, "no block of keys"),
        ({"checkpoint.root": "/etc"}, "leaves"),
        ({"stage": "sft", "checkpoint.init_from": "/etc"}, "leaves"),
        ({"checkpoint": {"root": "../x"}}, "leaves"),
        ({"name": object()}, "only text, numbers"),
        ({"": 1}, "unknown key"),
    ):
        with pytest.raises(SpecError, match=says):
            loader.loads(MINIMAL, base=tmp_path, overrides=overrides)


def test_an_override_does_not_reach_through_an_alias() -> None:
    text = MINIMAL.replace("budget: {steps: 10}", "budget: &b {steps: 10}")
    text = text.replace("version: 1\n", "version: 1\nplacement: {tp: &w {required: node}, dp: *w}\n")
    spec = loader.loads(text, overrides={"placement.tp.required": "rack"})
    assert {wish.group.value: wish.level for wish in spec.placement} == {"tp": "rack", "dp": "node"}


def test_a_workload_survives_the_journal(checkout: Path) -> None:
    spec = loader.load(checkout / "dags" / "specs" / "llama_8b.yaml")
    assert codec.from_json(WorkloadSpec, codec.to_json(spec)) == spec


def test_the_mapping_and_the_text_of_a_spec_mean_the_same(checkout: Path) -> None:
    text = (checkout / "dags" / "specs" / "llama_8b.yaml").read_text()
    assert loader.from_mapping(yaml.safe_load(text)) == loader.loads(text)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["auto", "0 tokens", "4Mi tokens", "1 sequences", "5%", "$1", "1h", "trainer", "fp32", "../x", "s3://x"]
    ),
    st.lists(st.integers() | st.text(max_size=4), max_size=3),
    st.dictionaries(st.text(max_size=6), st.integers() | st.text(max_size=4), max_size=3),
    st.just(object()),
)
FULL: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "dags" / "specs" / "llama_8b.yaml").read_text())


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(each for key, child in children for each in spots(child, (*path, key)))]


SPOTS = spots(FULL)[1:]


def loaded_or_errors(load: Callable[[], WorkloadSpec]) -> WorkloadSpec | tuple[SpecError, ...]:
    try:
        return load()
    except SpecError as error:
        return error.errors


@steady
@given(
    st.lists(st.tuples(st.sampled_from(SPOTS), JUNK, st.sampled_from(["set", "drop", "add"])), min_size=1, max_size=3)
)
def test_a_mutated_spec_loads_or_raises_a_spec_error(mutations: list[tuple[tuple[Any, ...], Any, str]]) -> None:
    spec = copy.deepcopy(FULL)
    for path, junk, how in mutations:
        block: Any = spec
        try:
            for part in path[:-1]:
                block = block[part]
            if how == "set":
                block[path[-1]] = junk
            elif how == "drop":
                del block[path[-1]]
            else:
                block[str(junk)[:10]] = junk
        except (KeyError, IndexError, TypeError):
            continue
    outcome = loaded_or_errors(lambda: loader.from_mapping(spec))
    assert isinstance(outcome, WorkloadSpec) or all(each.hint and each.path for each in outcome)


@steady
@given(st.integers(0, len(MINIMAL) - 1), st.integers(0, 6), st.text(max_size=6))
def test_a_spec_with_damaged_text_loads_or_raises_a_spec_error(at: int, num_cut: int, put: str) -> None:
    assert loaded_or_errors(lambda: loader.loads(MINIMAL[:at] + put + MINIMAL[at + num_cut :]))


@steady
@given(st.dictionaries(st.sampled_from(list(SMALL)), JUNK, max_size=6))
def test_a_form_of_anything_loads_or_raises_a_spec_error(form: dict[str, Any]) -> None:
    assert loaded_or_errors(lambda: loader.from_mapping(form))
