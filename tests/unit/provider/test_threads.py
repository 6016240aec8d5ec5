from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from airflow_llmsched.provider.threads import DaemonThreads
from tests.support.local_engine import wait_until

LIMIT_S = 20.0


def test_results_and_exceptions_reach_the_caller():
    threads = DaemonThreads(2, name="t")
    assert threads.submit(int, "7").result(LIMIT_S) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        threads.submit(int, "x").result(LIMIT_S)
    threads.close()


def test_no_more_threads_than_allowed_and_no_more_than_needed():
    release, started = threading.Event(), []

    def work() -> int:
        started.append(threading.get_ident())
        assert release.wait(LIMIT_S)
        return threading.get_ident()

    threads = DaemonThreads(3, name="t")
    futures = [threads.submit(work) for _ in range(10)]
    wait_until(lambda: len(started) == 3, LIMIT_S)
    release.set()
    assert len({future.result(LIMIT_S) for future in futures}) == 3
    threads.close()
    alone = DaemonThreads(3, name="alone")
    idents = set()
    for _ in range(5):
        idents.add(alone.submit(threading.get_ident).result(LIMIT_S))
    assert len(idents) <= 2, "an idle thread is used again; one that just finished may not be idle yet"
    alone.close()


def test_cancelled_call_is_not_made():
    release, made = threading.Event(), []
    threads = DaemonThreads(1, name="t")
    first = threads.submit(release.wait, LIMIT_S)
    second = threads.submit(made.append, "made")
    assert second.cancel()
    release.set()
    assert first.result(LIMIT_S)
    assert threads.submit(lambda: "last").result(LIMIT_S) == "last"
    assert made == []
    threads.close()


def test_closing_ends_the_threads_and_refuses_more():
    threads = DaemonThreads(2, name="closing")
    threads.submit(int).result(LIMIT_S)
    threads.close()
    threads.close()
    wait_until(lambda: not any(each.name.startswith("closing-") for each in threading.enumerate()), LIMIT_S)
    with pytest.raises(RuntimeError, match="closing"):
        threads.submit(int)


def test_hung_call_does_not_keep_the_process_from_ending():
    program = textwrap.dedent("""
        import threading
        from airflow_llmsched.provider.threads import DaemonThreads
        begun = threading.Event()
        def hang():
            begun.set()
            threading.Event().wait()
        DaemonThreads(1, name="t").submit(hang)
        begun.wait()
    """)
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
