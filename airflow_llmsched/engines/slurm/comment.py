"""A job's comment says whose it is: it is all that Slurm tells of a job before anything of it runs. Pure."""

from __future__ import annotations

import base64
import dataclasses
import json
import re

from airflow_llmsched.domain.gang import GangSpec
from airflow_llmsched.domain.identity import RunOrigin

MAX_COMMENT = 1024
"""Longest comment that Slurm takes (tried on 22.05: one character more is refused at submit)."""

_FORM = re.compile(r"llmsched:1:([A-Za-z0-9_\-=]*)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """What a job says of itself."""

    channel_root: str
    origin: RunOrigin | None = None


def comment_of(gang: GangSpec) -> str:
    """Return the comment, a single token. What is too long for Slurm is left out: such a job names no origin."""
    origin = None if gang.origin is None else dataclasses.asdict(gang.origin)
    said = json.dumps({"channel_root": gang.channel_root, "origin": origin}, separators=(",", ":"))
    text = f"llmsched:1:{base64.urlsafe_b64encode(said.encode()).decode()}"
    return text if len(text) <= MAX_COMMENT else "llmsched:1:"


def whose(comment: str) -> Whose | None:
    """Return what a job says of itself; None for a comment that is not ours, or from which it had to be left out."""
    found = _FORM.fullmatch(comment.strip())
    if found is None or not found[1]:
        return None
    try:
        said = json.loads(base64.urlsafe_b64decode(found[1]))
        origin = said["origin"]
        return Whose(channel_root=said["channel_root"], origin=None if origin is None else RunOrigin(**origin))
    except (ValueError, KeyError, TypeError):
        return None
