"""What simulated ranks do travels as JSON in the gang's environment."""

from __future__ import annotations

from airflow_llmsched import codec
from airflow_llmsched.sim.scripts import SimRankScript, SimTraining


def test_scripts_and_training_survive_json() -> None:
    scripts = [SimRankScript(lasts_s=None, says="a\nb"), SimRankScript(signal=9, ignores_sigterm=True)]
    assert codec.from_json(list[SimRankScript], codec.to_json(scripts, list[SimRankScript])) == scripts
    training = SimTraining(num_steps=5, checkpoint_interval_steps=None)
    assert codec.from_json(SimTraining, codec.to_json(training)) == training
