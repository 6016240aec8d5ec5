"""Rules between keys: each broken one names the key to change."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmsched.specs import rules
from airflow_llmsched.specs.schema import SpecModel
from tests.support.specs import DROP, SMALL, errors_of

TRAFFIC = {"group": "dp", "group_size": 2, "collective": "all_reduce", "bytes_per_step": "1GB"}
STATED = {
    "model": DROP,
    "launcher.command": ["python", "x.py"],
    "communication": {"version": 1, "traffic": [TRAFFIC]},
    "memory": {"version": 1, "tiers": [{"tier": "hbm", "bytes_per_rank": "1GB"}]},
}
LLAMA = {"model": "llama-3.1-8b"}
MIXTRAL = {"model": "mixtral-8x7b"}
BASE = {"init_from": "s3://bucket/step-00000100"}
LOADER = {"kind": "data_loader", "num_ranks": 2, "command": ["x"]}

BROKEN: list[tuple[dict[str, Any], set[str]]] = [
    ({"model": DROP}, {"communication", "memory", "launcher.command"}),
    ({**STATED, "memory": DROP}, {"memory"}),
    ({"stage": "lora"}, {"lora", "checkpoint.init_from"}),
    ({"stage": "continued"}, {"checkpoint.init_from"}),
    ({"stage": "sft"}, {"checkpoint.init_from"}),
    ({"checkpoint": BASE}, {"checkpoint.init_from"}),
    ({"lora": {"rank": 8}}, {"lora"}),
    ({"compression": {"kind": "1bit"}, "parallelism": {"zero_stage": 2}}, {"parallelism.zero_stage"}),
    ({"compression": {"kind": "1bit"}, "optimizer": {"kind": "sgd"}}, {"compression.kind"}),
    ({"stage": "lora", "lora": {"rank": 161}, "checkpoint": BASE}, {"lora.rank"}),
    ({"stage": "lora", "lora": {"rank": 8, "targets": ["query", "query"]}, "checkpoint": BASE}, {"lora.targets"}),
    ({"stage": "lora", "lora": {"rank": 8, "targets": ["experts"]}, "checkpoint": BASE}, {"lora.targets"}),
    ({"model": {"preset": "byte-gpt-1m", "freeze_encoder": True}}, {"model.freeze_encoder"}),
    ({"data": {"kind": "files"}}, {"data.source"}),
    ({"data.source": "https://x/y"}, {"data.source"}),
    ({"data.held_out": "100%"}, {"data.held_out"}),
    ({"budget": {}}, {"budget"}),
    ({"budget": {"steps": 1, "tokens": "1T tokens"}}, {"budget"}),
    (
        {"budget": {"tokens": "1M tokens"}, "batch.schedule": [{"from": 0}, {"from": "1M tokens"}]},
        {"batch.schedule[1].from"},
    ),
    ({"optimizer": {"warmup_steps": 10}}, {"optimizer.warmup_steps"}),
    ({"optimizer": {"warmup_steps": 3}, "budget": {"tokens": "8193 tokens"}}, {"optimizer.warmup_steps"}),
    ({"optimizer": {"warmup_steps": -1}}, {"optimizer.warmup_steps"}),
    ({"optimizer": {"learning_rate": 0}}, {"optimizer.learning_rate"}),
    ({"objective": {"cost": 0}}, {"objective"}),
    ({"objective": {}}, {"objective"}),
    ({"parallelism": {"tp": 2}}, {"parallelism.tp"}),
    ({**LLAMA, "parallelism": {"tp": 3}}, {"parallelism.tp"}),
    ({"parallelism": {"pp": 7}}, {"parallelism.pp"}),
    ({**LLAMA, "parallelism": {"ep": 2}}, {"parallelism.ep"}),
    ({**MIXTRAL, "parallelism": {"ep": 3}}, {"parallelism.ep"}),
    ({**MIXTRAL, "parallelism": {"ep": 8, "dp": 4, "tp": 1, "cp": 1}}, {"parallelism.ep"}),
    ({**MIXTRAL, "parallelism": {"ep": 8, "dp": 4, "tp": 2, "cp": 1, "expert_tp": 2}}, {"parallelism.ep"}),
    ({**LLAMA, "parallelism": {"pp": 8, "vp": 5}}, {"parallelism.vp"}),
    ({"parallelism": {"vp": 1, "schedule": "interleaved"}}, {"parallelism.vp"}),
    ({"parallelism": {"vp": 2, "schedule": "zero_bubble"}}, {"parallelism.schedule"}),
    ({"parallelism": {"offload": "parameters_nvme", "zero_stage": 2}}, {"parallelism.offload"}),
    ({"parallelism": {"dp": 4, "cp": 2, "shard_size": 3}}, {"parallelism.shard_size"}),
    ({"parallelism": {"dp": 2, "cp": 4, "shard_size": 2}}, {"parallelism.shard_size"}),
    ({"parallelism": {"micro_batch_size": 5}}, {"parallelism.micro_batch_size"}),
    ({"parallelism": {"dp": 3}}, {"parallelism.dp"}),
    ({"parallelism": {"dp": 8, "micro_batch_size": 8}}, {"parallelism.micro_batch_size"}),
    ({"parallelism": {"cp": 3}}, {"parallelism.cp"}),
    ({"model": "gpt2-124m", "batch.sequence_length": 1025}, {"batch.sequence_length"}),
    ({"capacity": {"min_ranks": 3, "max_ranks": 2}}, {"capacity.min_ranks"}),
    ({"capacity": {"max_ranks": 3}, "parallelism": {"dp": 4}}, {"capacity.max_ranks"}),
    ({"placement": {"tp": {}}}, {"placement.tp"}),
    ({"roles": [LOADER]}, {"roles"}),
    ({"roles": [{"kind": "trainer", "num_ranks": 2}]}, {"roles[0].num_ranks"}),
    ({"roles": [{"kind": "trainer", "command": ["x"]}]}, {"roles[0].command"}),
    ({"roles": [{"kind": "trainer"}, {"kind": "evaluator"}]}, {"roles[1].num_ranks", "roles[1].command"}),
    ({"roles": [{"kind": "trainer"}, LOADER, LOADER]}, {"roles[2].kind"}),
    ({"checkpoint": {"interval": "1h", "interval_steps": 5}}, {"checkpoint.interval"}),
    ({"launcher": {"environment": {"A B": "x"}}}, {"launcher.environment['A B']"}),
    ({"launcher": {"environment": {"LLMSCHED_NODE": "x"}}}, {"launcher.environment.LLMSCHED_NODE"}),
    ({"launcher": {"environment": {"MASTER_PORT": "1"}}}, {"launcher.environment.MASTER_PORT"}),
    ({"launcher": {"command": [""]}}, {"launcher.command[0]"}),
    ({"evaluation": {"command": [" "]}}, {"evaluation.command[0]"}),
    ({"launcher": {"command": ["python", "x.py"]}, "evaluation": {}}, {"evaluation.command"}),
    ({"evaluation": {"max_loss": 5.6}}, {"evaluation.max_loss"}),
    ({"evaluation": {}, "data.held_out": "0%"}, {"data.held_out"}),
    ({**STATED, "memory": {"version": 1, "tiers": []}}, {"memory.tiers"}),
    ({"memory": {"version": 1, "tiers": [{"tier": "hbm", "bytes_per_rank": "1GB"}] * 2}}, {"memory.tiers[1].tier"}),
    (
        {"communication": {"version": 1, "traffic": [{**TRAFFIC, "peer": "dp"}]}},
        {"communication.traffic[0].peer"},
    ),
]  # fmt: skip

KEPT: list[dict[str, Any]] = [
    {},
    STATED,
    {"stage": "lora", "lora": {"rank": 8}, "checkpoint": BASE},
    {"stage": "continued", "checkpoint": BASE},
    {"stage": "sft", "checkpoint": BASE},
    {"data": {"kind": "files", "source": "s3://bucket/x"}},
    {"budget": {"tokens": "2M tokens"}, "batch.schedule": [{"from": 0}, {"from": "1M tokens"}]},
    {"optimizer": {"learning_rate": 3e-4, "warmup_steps": 9}},
    {"optimizer": {"warmup_steps": 2}, "budget": {"tokens": "8193 tokens"}},
    {**LLAMA, "parallelism": {"tp": 8, "pp": 32}},
    {**LLAMA, "parallelism": {"tp": 16}},
    {**LLAMA, "parallelism": {"ep": 1}},
    {**MIXTRAL, "parallelism": {"ep": 4, "dp": 4, "micro_batch_size": 2}},
    {**MIXTRAL, "parallelism": {"ep": 8, "dp": 2, "tp": 4, "cp": 1, "expert_tp": 1}},
    {**LLAMA, "parallelism": {"pp": 8, "vp": 4, "schedule": "interleaved"}},
    {"parallelism": {"offload": "parameters_host", "zero_stage": 3}},
    {"parallelism": {"dp": 4, "cp": 2, "shard_size": 4, "offload": "none"}},
    {"model": "gpt2-124m", "batch.sequence_length": 1024},
    {"capacity": {"min_ranks": 2, "max_ranks": 4}, "parallelism": {"dp": 4}},
    {"placement": {"tp": {"required": "node"}, "gang": {"required": "zone", "preferred": "rack"}}},
    {"roles": [{"kind": "trainer"}, LOADER]},
    {"launcher": {"environment": {"NCCL_DEBUG": "WARN", "MY_VAR": 'it\'s "$x"\n'}}},
    {"evaluation": {"max_loss": 5.5}},
    {"evaluation": {"command": ["python", "x.py"]}, "data.held_out": "0%"},
]


@pytest.mark.parametrize(("changes", "paths"), BROKEN)
def test_a_broken_rule_names_the_keys_to_change(changes, paths) -> None:
    assert set(errors_of(changes)) == paths


@pytest.mark.parametrize("changes", KEPT)
def test_a_spec_within_the_rules_has_no_errors(changes) -> None:
    assert errors_of(changes) == {}


def test_every_rule_is_broken_by_one_of_these_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: set[str] = set()
    for blocks, rule in rules.RULES:
        monkeypatch.setattr(rules, "RULES", ((blocks, rule),))
        if any(errors_of(changes) for changes, _ in BROKEN):
            broken.add(rule.__name__)
        monkeypatch.undo()
    assert broken == {rule.__name__ for _, rule in rules.RULES}


def test_rules_that_read_a_bad_block_are_left_out() -> None:
    spec = SpecModel.model_validate({**SMALL, "budget": {}})
    sound = rules.Sound(spec=spec, shape=None, phases=None)
    assert [each.path for each in rules.check(sound, bad=set())] == [("budget",)]
    assert list(rules.check(sound, bad={"budget"})) == []


def test_a_gate_above_a_blind_guess_is_refused_with_the_loss_of_one() -> None:
    assert "5.55" in str(errors_of({"evaluation": {"max_loss": 6.0}})["evaluation.max_loss"])
