from __future__ import annotations

import pytest

from airflow_llmsched.control.task_files import newest_task_file, task_file_key
from airflow_llmsched.domain.identity import RunKey
from airflow_llmsched.errors import ObjectMissingError
from tests.support.memory_store import MemoryStore

RUN, OTHER = RunKey("ls-aaaaaaaaaaaaaaaaaaaa"), RunKey("ls-bbbbbbbbbbbbbbbbbbbb")


def test_the_newest_try_speaks_whoever_wrote_last() -> None:
    store = MemoryStore()
    for number in (2, 10, 9):
        store.put(task_file_key(RUN, "spec.json", try_number=number), b"%d" % number)
    store.put(task_file_key(RUN, "plan.json", try_number=11), b"another file")
    store.put(task_file_key(OTHER, "spec.json", try_number=12), b"another run's")
    assert newest_task_file(store, RUN, "spec.json") == b"10"


def test_a_file_that_no_try_has_written_is_missing() -> None:
    store = MemoryStore()
    store.put(task_file_key(RUN, "a-spec.json", try_number=1), b"")
    with pytest.raises(ObjectMissingError, match=r"no spec\.json of run ls-a"):
        newest_task_file(store, RUN, "spec.json")
