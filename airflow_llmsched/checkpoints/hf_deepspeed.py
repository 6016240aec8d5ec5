"""DeepSpeed's state inside a Hugging Face checkpoint: a pointer file names the folder that holds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_llmsched.checkpoints.scan import Torn, file_sizes, read_file

_POINTER = "latest"
_UNIVERSAL_POINTER = "latest_universal"
_FOLDER = re.compile(r"global_step[0-9]+/")
_MODEL_STATES = re.compile(r"(?:zero_pp_rank_[0-9]{1,6}_)?mp_rank_[0-9]{1,6}(?:_[0-9]+)?_model_states\.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedState:
    """``sizes``: bytes of each file of ``folder``. ``convertible``: a universal checkpoint, for any ranks, is there."""

    folder: str
    sizes: Mapping[str, int]
    convertible: bool


def deepspeed_state(directory: Path, names: Mapping[str, int]) -> DeepSpeedState | None:
    """Return the state the pointer names, None for a checkpoint without DeepSpeed.

    Raises:
        Torn: the pointer is missing or wrong, or what it names holds no model.
        CouldNotLookError: storage could not be read.
    """
    if _POINTER not in names:
        if any(_FOLDER.fullmatch(name) for name in names):
            raise Torn(f"{_POINTER} is missing beside the DeepSpeed state: its save did not finish")
        return None
    tag = (read_file(directory, _POINTER) or b"").decode(errors="replace").strip()
    if f"{tag}/" not in names:
        raise Torn(f"{_POINTER} names {tag!r}, which is not there")
    try:
        inner = file_sizes(directory / tag)
    except FileNotFoundError as error:
        raise Torn(f"{_POINTER} names {tag!r}, which is not there") from error
    if not any(_MODEL_STATES.fullmatch(name) for name in inner):
        raise Torn(f"{tag} holds no model states (mp_rank_R_model_states.pt)")
    sizes = {name: size for name, size in inner.items() if not name.endswith("/")}
    return DeepSpeedState(folder=tag, sizes=sizes, convertible=_UNIVERSAL_POINTER in names)
