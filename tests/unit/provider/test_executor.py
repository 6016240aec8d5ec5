from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_llmsched.provider.executor import THREADS_PER_BACK_END, run_blocking


def test_a_hung_back_end_delays_nobody_else():
    release = threading.Event()

    async def scenario() -> str:
        hung = [asyncio.ensure_future(run_blocking("hung", release.wait, 30)) for _ in range(THREADS_PER_BACK_END * 3)]
        await asyncio.sleep(0)
        answer = await asyncio.wait_for(run_blocking("well", lambda: "answer"), timeout=5)
        assert not any(task.done() for task in hung)
        release.set()
        await asyncio.gather(*hung)
        return answer

    assert asyncio.run(scenario()) == "answer"


def test_an_exception_reaches_the_caller():
    async def scenario() -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            await run_blocking("well", int, "x")

    asyncio.run(scenario())
