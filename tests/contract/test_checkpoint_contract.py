"""Both checkpoint formats of ours pass the same contract; DCP once on hand-made files and once on real saves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_llmsched.checkpoints.dcp import DcpFormat
from airflow_llmsched.checkpoints.hf_trainer import HfTrainerFormat
from airflow_llmsched.testing.checkpoint_contract import CheckpointFormatContract, CheckpointSaver
from tests.support.checkpoint_files import save_dcp, save_hf


class DcpSaver(CheckpointSaver):
    format = DcpFormat()
    last_file = ".metadata"
    data_file = "__1_0.distcp"

    def name(self, step: int) -> str:
        return f"step-{step:08d}"

    def save(self, root: Path, step: int) -> Path:
        return save_dcp(root / self.name(step))


class UnderscoreDcpSaver(DcpSaver):
    def name(self, step: int) -> str:
        return f"step_{step}"


class RealDcpSaver(DcpSaver):
    """Torch's own saves, one per step, made once: the state holds a model, its Adam state and the step."""

    data_file = "__0_0.distcp"

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def save(self, root: Path, step: int) -> Path:
        cached = self._cache / self.name(step)
        if not cached.exists():
            _real_save(cached, step)
        return Path(shutil.copytree(cached, root / self.name(step)))


class HfSaver(CheckpointSaver):
    format = HfTrainerFormat()
    last_file = "trainer_state.json"
    data_file = "pytorch_model-00002-of-00002.bin"  # unlike safetensors, these have checksums of their own

    def name(self, step: int) -> str:
        return f"checkpoint-{step}"

    def save(self, root: Path, step: int) -> Path:
        return save_hf(root / self.name(step), weights="pytorch_model.bin")


class TestDcp(CheckpointFormatContract):
    @pytest.fixture
    def saver(self) -> CheckpointSaver:
        return DcpSaver()


class TestDcpWithUnderscores(CheckpointFormatContract):
    @pytest.fixture
    def saver(self) -> CheckpointSaver:
        return UnderscoreDcpSaver()


@pytest.fixture(scope="module")
def real_saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.mark.torch
class TestRealDcp(CheckpointFormatContract):
    @pytest.fixture
    def saver(self, real_saves: Path) -> CheckpointSaver:
        return RealDcpSaver(real_saves)


class TestHfTrainer(CheckpointFormatContract):
    @pytest.fixture
    def saver(self) -> CheckpointSaver:
        return HfSaver()


def _real_save(path: Path, step: int) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(step)
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 32)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": step}
    dcp.save(state, checkpoint_id=path, no_dist=True)
