from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from airflow_llmsched.domain.workload import (
    EncoderShape,
    ExpertShape,
    LatentAttention,
    ModelShape,
    OptimizerKind,
    Positions,
    TrainingStage,
)
from airflow_llmsched.errors import SpecError
from airflow_llmsched.planner.perf.parameters import count_parameters
from airflow_llmsched.provider.trainer_settings import (
    _ARCHITECTURE,
    TRAINER,
    train_settings,
    trainer_command,
    trainer_environment,
)
from airflow_llmsched.trainers.settings import DATASET_VARIABLE, TRAIN_VARIABLE, TrainSettings

ENCODER = EncoderShape(
    num_layers=1, hidden_size=8, num_layer_parameters=10, num_other_parameters=1, num_projector_parameters=1
)


def test_the_shipped_trainer_runs_under_this_python(demo_spec):
    assert trainer_command(demo_spec) == (sys.executable, "-m", TRAINER)


def test_settings_reach_the_trainer_as_the_spec_has_them(demo_spec):
    environment = trainer_environment(demo_spec, manifest="/data/manifest.json")
    settings = TrainSettings.from_json(environment[TRAIN_VARIABLE])
    assert environment[DATASET_VARIABLE] == "/data/manifest.json"
    assert settings == train_settings(demo_spec)
    assert settings.num_sequences == demo_spec.batch[0].num_sequences
    assert settings.num_layers == demo_spec.model.num_layers


def test_a_command_of_the_specs_own_gets_no_settings_of_ours(demo_spec):
    spec = replace(demo_spec, launcher=replace(demo_spec.launcher, command=("python", "mine.py")))
    assert trainer_command(spec) == ("python", "mine.py")
    assert TRAIN_VARIABLE not in trainer_environment(spec, manifest="/m")


@pytest.mark.parametrize(
    "foreign",
    [
        {"vocab_size": 50257},
        {"experts": ExpertShape(num_routed=4, num_active=2, expert_hidden_size=64)},
        {"positions": Positions.LEARNED, "max_positions": 128},
        {"positions": Positions.NONE},
        {"norm_has_weight": False},
        {"norm_has_bias": True},
        {"attention_qkv_bias": True},
        {"attention_out_bias": True},
        {"mlp_bias": True},
        {"qk_norm": True, "qk_norm_full_width": True},
        {"attention_window_tokens": 64},
        {"head_size": 64},
        {"cross_attention_layers": (0,)},
        {"attention_sinks": True},
        {"latent": LatentAttention(kv_latent_size=8, rope_head_size=4, value_head_size=8)},
        {"num_norms_per_layer": 4},
        {"embedding_norm": True},
        {"final_norm": False},
        {"parallel_block": True},
        {"embedding_size": 64},
        {"num_extra_embedding_rows": 8},
        {"head_bias": True},
        {"num_predict_ahead_layers": 1},
        {"encoder": ENCODER},
    ],
)
def test_a_model_the_shipped_trainer_would_not_build_is_refused_by_the_field(demo_spec, foreign):
    spec = replace(demo_spec, model=replace(demo_spec.model, **foreign))
    with pytest.raises(SpecError, match="give the command of your own trainer") as caught:
        train_settings(spec)
    assert caught.value.path == f"model.{next(iter(foreign))}"


def test_every_field_of_a_shape_is_built_or_refused(demo_spec):
    built = {"name", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "ffn_hidden_size",
             "gated_mlp", "tied_embeddings"}  # fmt: skip
    without_effect = {"max_positions", "qk_norm_full_width", "qk_norm_has_bias", "full_attention_layers"}
    fields = set(ModelShape.__dataclass_fields__)
    assert fields == built | without_effect | set(_ARCHITECTURE)


def test_a_job_without_a_model_is_not_for_the_shipped_trainer(demo_spec):
    with pytest.raises(SpecError, match=r"model: .*; give the command of your own trainer"):
        train_settings(replace(demo_spec, model=None))


def test_an_optimizer_the_shipped_trainer_does_not_know_is_refused(demo_spec):
    spec = replace(demo_spec, optimizer=replace(demo_spec.optimizer, kind=OptimizerKind.SGD))
    with pytest.raises(SpecError, match=r"optimizer\.kind = 'sgd': .* only adamw"):
        train_settings(spec)


@pytest.mark.torch
def test_what_the_trainer_builds_has_the_parameters_that_were_planned_for(demo_spec):
    from airflow_llmsched.trainers.model import ByteGpt

    built = ByteGpt(train_settings(demo_spec))
    assert sum(each.numel() for each in built.parameters()) == count_parameters(demo_spec.model).total


@pytest.mark.parametrize("stage", TrainingStage)
def test_the_shipped_trainer_takes_stages_that_train_all_weights_on_plain_text(demo_spec, stage):
    spec = replace(demo_spec, stage=stage)
    if stage in {TrainingStage.PRETRAIN, TrainingStage.CONTINUED}:
        assert train_settings(spec) == train_settings(demo_spec)
        return
    with pytest.raises(SpecError, match=f"stage = '{stage.value}': .*; give the command of your own trainer"):
        train_settings(spec)
    own = replace(spec, launcher=replace(spec.launcher, command=("python", "mine.py")))
    assert TRAIN_VARIABLE not in trainer_environment(own, manifest="/m")


def test_the_specs_learning_rate_and_warm_up_replace_the_trainers_own(demo_spec):
    own = train_settings(demo_spec)
    assert (demo_spec.optimizer.learning_rate, demo_spec.optimizer.warmup_steps) == (None, None)
    assert (own.learning_rate, own.warmup_steps) == (3e-3, 20)

    optimizer = replace(demo_spec.optimizer, learning_rate=1e-4, warmup_steps=0)
    settings = train_settings(replace(demo_spec, optimizer=optimizer))
    assert settings == replace(own, learning_rate=1e-4, warmup_steps=0)
