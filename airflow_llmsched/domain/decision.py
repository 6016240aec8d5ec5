"""A policy's choices. A decision says what should happen; commands (``control.machine``) which effects that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_llmsched.domain.identity import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Launch again with the same plan."""

    reason: str
    kind: Literal["restart"] = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrate:
    """Launch again on whatever is free now, with a new plan: other nodes, or another number of ranks.

    ``excluded`` are nodes to stay off as long as a plan without them exists.
    """

    reason: str
    excluded: tuple[NodeId, ...] = ()
    kind: Literal["migrate"] = "migrate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Give up the generation."""

    reason: str
    kind: Literal["abort"] = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Nothing is left to train: the newest sound checkpoint is of ``step``, the last one."""

    reason: str
    step: int
    kind: Literal["finish"] = "finish"


Decision = Restart | Migrate | Abort | Finish
