from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.objects.remote import RemoteStore


def test_a_plain_path_and_its_file_uri_are_the_same_store(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20ü #"
    plain, by_uri = open_store(str(folder)), open_store(folder.as_uri())
    assert isinstance(plain, LocalStore)
    assert plain.uri == by_uri.uri == folder.as_uri()
    plain.put("k", b"1")
    assert by_uri.get("k") == b"1"


def test_a_relative_path_is_fixed_when_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("state")
    monkeypatch.chdir("/")
    assert store.uri == (tmp_path / "state").as_uri()


@pytest.mark.parametrize("uri", ["s3://bucket/x", "gs://bucket", "az://container/x", "memory://"])
def test_a_bucket_uri_opens_a_remote_store_that_keeps_its_name(uri: str) -> None:
    options = {"config": {"account_name": "acc"}} if uri.startswith("az") else {}
    store = open_store(uri, **options)
    assert isinstance(store, RemoteStore)
    assert store.uri == uri


@pytest.mark.parametrize("uri", ["", "ftp://x/y", "file://host/x", "S3//x://"])
def test_a_uri_of_no_known_store_is_refused_with_what_would_be_right(uri: str) -> None:
    with pytest.raises(SpecError, match="uri"):
        open_store(uri)


def test_options_for_a_folder_are_refused_by_name_only(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="takes no options, got config") as caught:
        open_store(str(tmp_path), config={"aws_secret_access_key": "TOPSECRET"})
    assert "TOPSECRET" not in str(caught.value)


def test_opening_a_folder_does_not_load_the_cloud_library() -> None:
    code = "import sys, airflow_llmsched.objects.open as o; o.open_store('/tmp/x'); print('obstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
