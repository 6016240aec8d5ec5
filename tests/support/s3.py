"""A real S3 endpoint (moto) on a free port, and a proxy in front of it that loses answers."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.http_server import LocalServer, QuietHandler

CONFIG = {"aws_access_key_id": "test", "aws_secret_access_key": "S3CR3T-KEY", "aws_region": "us-east-1"}
CLIENT_OPTIONS = {"allow_http": True}


@contextlib.contextmanager
def s3_server(folder: Path, *, limit_s: float = 60.0) -> Iterator[str]:
    """Run moto for the length of the block and yield its address. It chooses its own port and says which."""
    log = folder / "moto.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.support.moto_in_turn"],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
    try:
        yield _address(process, log, limit_s)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _address(process: subprocess.Popen[bytes], log: Path, limit_s: float) -> str:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and process.poll() is None:
        for word in log.read_text(errors="replace").split():
            if word.startswith("http://127.0.0.1:"):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(word + "/moto-api/", timeout=5).close()
                    return word
        time.sleep(0.05)
    raise RuntimeError(f"moto did not start: {log.read_text(errors='replace')[-2000:]}")


def make_bucket(address: str, name: str) -> None:
    """Create a bucket by the plain REST call; moto checks no signature."""
    request = urllib.request.Request(f"{address}/{name}", method="PUT", headers={"Authorization": _ANY_SIGNATURE})
    urllib.request.urlopen(request, timeout=30).close()


_ANY_SIGNATURE = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00"


class LossyProxy(LocalServer):
    """Passes requests on and, for the next ``num_to_lose`` PUTs, gives ``status`` in place of the server's answer."""

    def __init__(self, upstream: str) -> None:
        self.num_to_lose = 0
        self.status = 500
        self.num_puts = 0
        proxy = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = http.client.HTTPConnection(upstream.removeprefix("http://"), timeout=30)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                status, data, headers = answer.status, answer.read(), answer.getheaders()
                connection.close()
                proxy.num_puts += self.command == "PUT"
                if self.command == "PUT" and proxy.num_to_lose > 0:
                    proxy.num_to_lose -= 1
                    status, data, headers = proxy.status, b"", []
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        super().__init__(Handler)
