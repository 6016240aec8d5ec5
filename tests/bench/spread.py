"""Work of a benchmark spread over processes, none of which shares anything with another."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def spread(
    function: Callable[[Question], Answer], questions: Sequence[Question], *, num_processes: int
) -> list[Answer]:
    """Return the answer to each question, in their order; with one process in this one."""
    if num_processes == 1:
        return [function(question) for question in questions]
    # spawned: forks would carry the locks of the parent's threads along
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        return list(pool.map(function, questions))
