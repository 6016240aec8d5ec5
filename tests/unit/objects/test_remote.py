from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError, SpecError, StoreError
from airflow_llmsched.objects.remote import RemoteStore
from tests.support.s3 import CLIENT_OPTIONS, CONFIG, LossyProxy, make_bucket, s3_server

SECRET = CONFIG["aws_secret_access_key"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        make_bucket(address, "bucket")
        yield address


def open_s3(address: str, uri: str, **limits: Any) -> RemoteStore:
    return RemoteStore(uri, config=CONFIG | {"aws_endpoint": address}, client_options=CLIENT_OPTIONS, **limits)


def every_call(store: RemoteStore) -> list[Callable[[], object]]:
    return [
        lambda: store.get("k"),
        lambda: store.put("k", b""),
        lambda: store.create("k", b""),
        lambda: list(store.list("")),
        lambda: store.delete("k"),
    ]


def test_an_absent_bucket_is_never_taken_for_an_absent_object(address: str) -> None:
    store = open_s3(address, "s3://no-such-bucket/x")
    for call in every_call(store):
        with pytest.raises(StoreError, match="no such bucket; create it or correct the URI"):
            call()


def test_an_endpoint_that_does_not_answer_is_an_error_in_bounded_time_and_shows_no_secret() -> None:
    store = open_s3("http://127.0.0.1:1", "s3://bucket", retry_limit_s=1.0, max_retries=1)
    for call in every_call(store):
        start_s = time.monotonic()
        with pytest.raises(StoreError, match="check endpoint, region and network") as caught:
            call()
        assert time.monotonic() - start_s < 10
        assert SECRET not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_refused_credentials_say_so(address: str) -> None:
    with LossyProxy(address) as proxy:
        proxy.status, proxy.num_to_lose = 403, 1
        with pytest.raises(StoreError, match="check the credentials") as caught:
            open_s3(proxy.address, "s3://bucket/refused").put("k", b"1")
    assert SECRET not in str(caught.value)


def test_a_create_whose_answer_was_lost_is_known_to_have_won(address: str) -> None:
    with LossyProxy(address) as proxy:
        store = open_s3(proxy.address, "s3://bucket/lost")
        proxy.num_to_lose = 1
        store.create("k", b"mine")
        assert proxy.num_puts >= 2  # the repetition was refused: the object was there
        assert store.get("k") == b"mine"
        with pytest.raises(ObjectExistsError):
            store.create("k", b"mine")


def test_a_create_without_repetitions_whose_answer_was_lost_is_looked_up(address: str) -> None:
    with LossyProxy(address) as proxy:
        store = open_s3(proxy.address, "s3://bucket/once", max_retries=0)
        proxy.num_to_lose = 1
        store.create("k", b"mine")
        assert proxy.num_puts == 1
        assert store.get("k") == b"mine"


def test_a_create_that_lost_to_another_with_a_lost_answer_is_not_taken_for_a_win(address: str) -> None:
    open_s3(address, "s3://bucket/other").create("k", b"same")
    with LossyProxy(address) as proxy:
        proxy.num_to_lose = 1
        with pytest.raises(ObjectExistsError):
            open_s3(proxy.address, "s3://bucket/other").create("k", b"same")


def test_stores_of_one_bucket_share_objects_and_keep_to_their_prefix(address: str) -> None:
    inner, outer = open_s3(address, "s3://bucket/share/a/"), open_s3(address, "s3://bucket/share")
    inner.put("k", b"1")
    assert inner.uri == "s3://bucket/share/a"
    assert [info.key for info in outer.list("")] == ["a/k"]
    assert [info.key for info in inner.list("")] == ["k"]
    with pytest.raises(ObjectMissingError, match="'a/k' in s3://bucket/share/a"):
        inner.get("a/k")


def test_an_unknown_setting_is_a_spec_error_that_shows_no_value() -> None:
    with pytest.raises(SpecError, match="aws_bogus") as caught:
        RemoteStore("s3://bucket", config={"aws_bogus": SECRET})
    assert SECRET not in str(caught.value)


def test_each_memory_store_is_its_own(tmp_path: Path) -> None:
    one, two = RemoteStore("memory://"), RemoteStore("memory://")
    one.put("k", b"1")
    assert list(two.list("")) == []
    with pytest.raises(ObjectMissingError):
        two.get("k")


def test_presigned_urls_let_whoever_holds_them_do_one_thing_to_one_object(address: str) -> None:
    store = open_s3(address, "s3://bucket/pre fix")
    (put,) = store.presign("PUT", ["a b/1.json"], lifetime_s=60.0)
    headers = {"Content-Type": "application/json"}  # moto reads a form where urllib would call it one
    urllib.request.urlopen(urllib.request.Request(put, data=b"{}", method="PUT", headers=headers), timeout=30).close()
    assert store.get("a b/1.json") == b"{}"
    (get,) = store.presign("GET", ["a b/1.json"], lifetime_s=60.0)
    with urllib.request.urlopen(get, timeout=30) as answer:
        assert answer.read() == b"{}"
    assert store.presign("GET", [], lifetime_s=60.0) == []


def test_store_in_memory_has_no_urls_and_bad_keys_get_none(address: str) -> None:
    with pytest.raises(SpecError, match="has no URLs"):
        RemoteStore("memory://").presign("GET", ["k"], lifetime_s=60.0)
    with pytest.raises(SpecError, match="never leave the store's root"):
        open_s3(address, "s3://bucket").presign("GET", ["../k"], lifetime_s=60.0)
