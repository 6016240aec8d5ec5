"""What every ``ObjectStore`` must prove. An adapter's author subclasses it and says how to open an empty store."""

# ruff: noqa: D102  # a test's name is its sentence

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError, SpecError
from airflow_llmsched.ports import ObjectStore

NUM_RACERS = 16

AWKWARD_KEYS = (
    "plain",
    "a b/c d",
    'quote\'s/"double"',
    "$(touch pwned)/`id`;rm -rf",
    "percent%20/%2e%2e",
    "hash#/query?/tilde~/star*/brace{}[]",
    "umlaut-ä/漢字",
    "back\\slash",
    "..hidden/...dots",
    "x" * 200,
    "deep/" * 20 + "leaf",
)

BAD_KEYS = ("", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\x00b", "a\nb", ".llmsched-tmp-x", "x" * 300, "\ud800")

# Few names, so that operations meet; no name is also a folder, which a folder store cannot hold.
_KEYS = st.sampled_from(["j/00001", "j/00002", "j/00010", "j-x/1", "j.x", "k/a/b", "k/a-b"])
_OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["create", "put", "delete", "get"]), _KEYS, st.binary(max_size=40)), max_size=25
)


class ObjectStoreContract:
    """Subclass as ``TestMyStore`` and define the ``open_empty`` fixture: a function that opens a new, empty store."""

    num_property_examples = 40

    @pytest.fixture
    def open_empty(self) -> Callable[[], ObjectStore]:
        """Return a function that opens a new, empty store at each call."""
        raise NotImplementedError("define the open_empty fixture in the subclass")

    @pytest.fixture
    def store(self, open_empty: Callable[[], ObjectStore]) -> ObjectStore:
        """Return one empty store."""
        return open_empty()

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert list(store.list("")) == []
        assert list(store.list("no/such/")) == []

    def test_what_was_written_is_read_back(self, store: ObjectStore) -> None:
        everything = bytes(range(256)) * 40
        store.put("a/b", everything)
        store.create("a/empty", b"")
        assert store.get("a/b") == everything
        assert store.get("a/empty") == b""

    def test_a_large_object_is_read_back(self, store: ObjectStore) -> None:
        data = bytes(range(251)) * 50_000  # 12 MB: more than one part of a multipart upload
        store.put("large", data)
        assert store.get("large") == data

    def test_an_absent_object_is_missing_not_unreadable(self, store: ObjectStore) -> None:
        store.put("a/b", b"1")
        for key in ("nope", "a", "a/b/c", "a/c", "z/y/x"):
            with pytest.raises(ObjectMissingError, match=key):
                store.get(key)

    def test_put_replaces_all_of_the_old_bytes(self, store: ObjectStore) -> None:
        store.put("k", b"long old value")
        store.put("k", b"new")
        assert store.get("k") == b"new"
        assert [info.num_bytes for info in store.list("k")] == [3]

    def test_create_refuses_what_is_there_and_leaves_it_alone(self, store: ObjectStore) -> None:
        store.create("k", b"first")
        with pytest.raises(ObjectExistsError, match="k"):
            store.create("k", b"second")
        with pytest.raises(ObjectExistsError, match="k"):
            store.create("k", b"first")  # the same bytes are no excuse
        assert store.get("k") == b"first"

    def test_create_works_again_after_a_delete(self, store: ObjectStore) -> None:
        store.create("k", b"first")
        store.delete("k")
        store.create("k", b"second")
        assert store.get("k") == b"second"

    def test_delete_is_silent_when_absent_and_spares_the_rest(self, store: ObjectStore) -> None:
        store.put("a/b", b"1")
        for key in ("nope", "a", "a/b/c"):
            store.delete(key)
        assert store.get("a/b") == b"1"
        store.delete("a/b")
        store.delete("a/b")
        assert list(store.list("")) == []

    def test_list_is_in_key_order_and_takes_any_prefix(self, store: ObjectStore) -> None:
        keys = ["a-b", "a.b", "a/1", "a/10", "a/2", "a/b/c", "a0", "b"]
        for key in reversed(keys):
            store.put(key, key.encode())
        assert [info.key for info in store.list("")] == sorted(keys)
        assert [info.key for info in store.list("a/")] == ["a/1", "a/10", "a/2", "a/b/c"]
        assert [info.key for info in store.list("a/1")] == ["a/1", "a/10"]
        assert [info.key for info in store.list("a")] == sorted(keys)[:-1]
        assert [info.num_bytes for info in store.list("a/b/")] == [5]
        assert list(store.list("c")) == []

    def test_folders_are_the_names_one_level_down(self, store: ObjectStore) -> None:
        for key in ("top", "runs/b/summary.json", "runs/b/channel/x/up/n0", "runs/a-b/1", "runs/a/deep/er/1", "runs/x"):
            store.put(key, b"1")
        assert list(store.folders("runs/")) == ["a", "a-b", "b"]
        assert list(store.folders("")) == ["runs"]
        assert list(store.folders("runs/b/")) == ["channel"]
        assert list(store.folders("runs/x/")) == []
        assert list(store.folders("nowhere/")) == []

    def test_folder_whose_objects_were_deleted_is_none(self, store: ObjectStore) -> None:
        store.put("runs/a/1", b"")
        store.delete("runs/a/1")
        assert list(store.folders("runs/")) == []

    @pytest.mark.parametrize("prefix", ["runs", "/", "a//", "../", "a/../b/"])
    def test_what_names_no_folder_is_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(SpecError):
            list(store.folders(prefix))

    def test_list_tells_when_an_object_was_written(self, store: ObjectStore) -> None:
        store.put("k", b"1")
        (first,) = store.list("")
        assert first.modified_s > 1_600_000_000

    def test_list_sees_more_objects_than_one_page_holds(self, store: ObjectStore) -> None:
        """Field case H9: only the first page of 1,000 was read."""
        keys = [f"page/{number:05d}" for number in range(1_100)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b""), keys))
        assert [info.key for info in store.list("page/")] == keys

    @pytest.mark.parametrize("key", AWKWARD_KEYS)
    def test_awkward_names_do_no_harm(self, store: ObjectStore, key: str) -> None:
        store.create(key, b"1")
        assert [info.key for info in store.list("")] == [key]
        assert store.get(key) == b"1"
        store.delete(key)
        assert list(store.list("")) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_keys_that_no_store_could_hold_are_refused(self, store: ObjectStore, key: str) -> None:
        for call in (store.get, store.delete, lambda k: store.put(k, b""), lambda k: store.create(k, b"")):
            with pytest.raises(SpecError):
                call(key)
        assert list(store.list("")) == []

    @pytest.mark.parametrize("prefix", ["/", "/a", "a//", "../", "a/../b", "a\x00"])
    def test_prefixes_that_leave_the_root_are_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(SpecError):
            list(store.list(prefix))

    def test_of_many_writers_that_create_one_key_exactly_one_wins(self, store: ObjectStore) -> None:
        for number in range(5):
            key = f"race/{number}"
            gate = threading.Barrier(NUM_RACERS)

            def race(writer: int, key: str = key, gate: threading.Barrier = gate) -> int | None:
                gate.wait()
                try:
                    store.create(key, b"writer %d" % writer)
                except ObjectExistsError:
                    return None
                return writer

            with ThreadPoolExecutor(NUM_RACERS) as pool:
                winners = [winner for winner in pool.map(race, range(NUM_RACERS)) if winner is not None]
            assert len(winners) == 1
            assert store.get(key) == b"writer %d" % winners[0]
        assert len(list(store.list(""))) == 5

    def test_readers_see_the_old_bytes_or_the_new_never_a_mixture(self, store: ObjectStore) -> None:
        values = [bytes([letter]) * 200_000 for letter in b"abcd"]
        store.put("k", values[0])
        done = threading.Event()

        def read() -> tuple[int, bool]:
            num_reads, whole = 0, True
            while not done.is_set() or num_reads == 0:
                whole = whole and store.get("k") in values
                whole = whole and [info.num_bytes for info in store.list("")] == [200_000]
                num_reads += 1
            return num_reads, whole

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            try:
                for number in range(20):
                    store.put("k", values[number % 4])
            finally:
                done.set()
        for reader in readers:
            num_reads, whole = reader.result()
            assert num_reads > 0
            assert whole

    def test_any_sequence_of_operations_behaves_like_a_dictionary(self, open_empty: Callable[[], ObjectStore]) -> None:
        @settings(
            max_examples=self.num_property_examples,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(operations=_OPERATIONS)
        def check(operations: list[tuple[str, str, bytes]]) -> None:
            store, model = open_empty(), dict[str, bytes]()
            for operation, key, data in operations:
                _apply(store, model, operation, key, data)
            for prefix in ("", "j", "j/", "j/0000", "k/a"):
                found = [(info.key, info.num_bytes) for info in store.list(prefix)]
                assert found == sorted((key, len(data)) for key, data in model.items() if key.startswith(prefix))
            for prefix in ("", "j/", "k/"):
                below = {key.removeprefix(prefix) for key in model if key.startswith(prefix)}
                assert list(store.folders(prefix)) == sorted({name.split("/")[0] for name in below if "/" in name})
            for key, data in model.items():
                assert store.get(key) == data

        check()


def _apply(store: ObjectStore, model: dict[str, bytes], operation: str, key: str, data: bytes) -> None:
    if operation == "put":
        store.put(key, data)
        model[key] = data
    elif operation == "delete":
        store.delete(key)
        model.pop(key, None)
    elif operation == "create" and key in model:
        with pytest.raises(ObjectExistsError):
            store.create(key, data)
    elif operation == "create":
        store.create(key, data)
        model[key] = data
    elif key in model:
        assert store.get(key) == model[key]
    else:
        with pytest.raises(ObjectMissingError):
            store.get(key)
