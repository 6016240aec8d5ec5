from __future__ import annotations

import asyncio
import json

import pytest
from airflow.serialization.serialized_objects import BaseSerialization

from airflow_llmsched.provider.triggers.checkpoint import CheckpointTrigger
from tests.support.checkpoint_files import save_dcp


async def _first_event(trigger):
    async for event in trigger.run():
        return event.payload
    raise AssertionError("the trigger ended without an event")


def test_arguments_survive_the_database():
    trigger = CheckpointTrigger(path=["/a b", "/c'd"], min_step=7, poll_interval_s=0.5, after_step=None)
    path, arguments = trigger.serialize()
    stored = json.loads(json.dumps(BaseSerialization.serialize(arguments)))
    again = CheckpointTrigger(**BaseSerialization.deserialize(stored))
    assert again.serialize() == (path, arguments)


def test_one_path_is_one_path():
    assert CheckpointTrigger(path="/runs/a").path == "/runs/a"


def test_fires_with_the_newest_complete_checkpoint(tmp_path):
    save_dcp(tmp_path / "step-00000100")
    save_dcp(tmp_path / "step-00000200")
    (tmp_path / "step-00000200" / ".metadata").unlink()
    payload = asyncio.run(_first_event(CheckpointTrigger(path=str(tmp_path))))
    assert payload["checkpoint"]["step"] == 100


def test_waits_for_a_step_above_the_floor(tmp_path):
    save_dcp(tmp_path / "step-00000100")
    trigger = CheckpointTrigger(path=str(tmp_path), after_step=100, poll_interval_s=0.01)

    async def scenario():
        waiting = asyncio.ensure_future(_first_event(trigger))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), timeout=0.3)
        save_dcp(tmp_path / "step-00000101")
        return await asyncio.wait_for(waiting, timeout=10)

    assert asyncio.run(scenario())["checkpoint"]["step"] == 101
