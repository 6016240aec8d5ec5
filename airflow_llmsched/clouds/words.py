"""A cloud's word for a state, in ours. A word that no table has is loud, and keeps nothing from being given back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def state_of(table: Mapping[str, T], word: str, *, thing: str, otherwise: T) -> T:
    """Return what ``table`` says of ``word``, which a cloud calls ``thing`` (both named in the error line).

    For a word that it does not have: ``otherwise``, a state in which the thing may still run and bill. An exception
    would hide all else that the cloud lists, and clouds get new words while machines are rented.
    """
    if word in table:
        return table[word]
    log.error(
        "%s is called %r, a word that airflow_llmsched does not know: it counts as there, and may run and cost money. "
        "Look at it by hand, and report the word",
        thing,
        word,
    )
    return otherwise
