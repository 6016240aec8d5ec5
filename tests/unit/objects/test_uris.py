from __future__ import annotations

import pytest

from airflow_llmsched.errors import SpecError
from airflow_llmsched.objects.uris import check_bucket_uri


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://account/container", "az://account/container"),
        ("memory://", "memory://"),
        ("memory:///", "memory:///"),
    ],
)
def test_a_bucket_uri_loses_only_its_trailing_slash(uri: str, expected: str) -> None:
    assert check_bucket_uri(uri) == expected


@pytest.mark.parametrize("uri", ["", "bucket", "s3:bucket", "ftp://x", "s3://", "s3:///a", "s3://b?x=1", "s3://b#f"])
def test_what_names_no_bucket_is_refused(uri: str) -> None:
    with pytest.raises(SpecError, match="must"):
        check_bucket_uri(uri)


def test_credentials_in_a_uri_are_refused_without_showing_them() -> None:
    with pytest.raises(SpecError, match="must not hold credentials") as caught:
        check_bucket_uri("s3://AKIA:TOPSECRET@bucket/x")
    assert "TOPSECRET" not in str(caught.value)
