"""The switch is run for real, against an instance metadata service of this process's own."""

from __future__ import annotations

import base64
import email
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_llmsched.clouds.aws.tags import EXPIRES
from airflow_llmsched.clouds.aws.user_data import GRACE_S, MAX_BYTES, SWITCH, user_data
from airflow_llmsched.errors import SpecError


class Metadata:
    """IMDSv2: a token by PUT, and tags for whoever shows it."""

    def __init__(self) -> None:
        self.expires: str | None = None
        self.num_asked = 0
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                assert self.path == "/latest/api/token"
                assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self._say(200, "t0ken")

            def do_GET(self) -> None:
                metadata.num_asked += 1
                if self.headers["X-aws-ec2-metadata-token"] != "t0ken":
                    self._say(401, "")
                elif metadata.expires is None or self.path != f"/latest/meta-data/tags/instance/{EXPIRES}":
                    self._say(404, "<html>not found</html>")
                else:
                    self._say(200, metadata.expires)

            def _say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    made = Metadata()
    yield made
    made.server.shutdown()
    made.server.server_close()


def start(tmp_path: Path, metadata: Metadata, *, expires_s: int) -> subprocess.Popen[bytes]:
    script, off = tmp_path / "switch", tmp_path / "off"
    script.write_text(SWITCH)
    env = {
        "PATH": "/usr/bin:/bin",
        "LLMSCHED_IMDS": metadata.address,
        "LLMSCHED_POWER_OFF": f"touch {off}",
        "LLMSCHED_LOOK_EVERY_S": "0.05",
    }
    return subprocess.Popen(["sh", str(script), str(expires_s)], env=env)


def wait_until_asked(metadata: Metadata, num_times: int) -> None:
    deadline_s = time.monotonic() + 60
    while metadata.num_asked < num_times:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_machine_whose_lease_has_expired_powers_itself_off(tmp_path: Path, metadata: Metadata) -> None:
    metadata.expires = str(int(time.time()) - GRACE_S - 5)
    process = start(tmp_path, metadata, expires_s=int(time.time()) + 3600)
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "off").exists()


def test_a_renewal_keeps_it_on_and_its_end_is_noticed(tmp_path: Path, metadata: Metadata) -> None:
    metadata.expires = str(int(time.time()) + 3600)
    process = start(tmp_path, metadata, expires_s=0)
    wait_until_asked(metadata, 3)
    assert process.poll() is None
    metadata.expires = "1"
    assert process.wait(timeout=60) == 0
    assert (tmp_path / "off").exists()


def test_a_machine_that_cannot_read_its_tag_goes_by_the_last_expiry_it_knew(tmp_path: Path, metadata: Metadata) -> None:
    process = start(tmp_path, metadata, expires_s=int(time.time()) + 3600)
    wait_until_asked(metadata, 3)
    assert process.poll() is None
    process.kill()
    process.wait()
    assert start(tmp_path, metadata, expires_s=1).wait(timeout=60) == 0
    assert (tmp_path / "off").exists()


def decoded(**options: object) -> str:
    return base64.b64decode(user_data(expires_s="1750003600", **options)).decode()


def test_the_start_up_script_installs_the_switch_as_a_service() -> None:
    text = decoded()
    assert text.startswith("#!/bin/sh\n")
    assert SWITCH in text
    assert "ExecStart=/usr/local/sbin/llmsched-lease 1750003600\n" in text
    checked = subprocess.run(["sh", "-n"], input=text.encode(), check=False)
    assert checked.returncode == 0


def test_own_text_stands_beside_the_switch_in_what_cloud_init_reads() -> None:
    archive = email.message_from_string(decoded(own="#cloud-config\npackages: [jq]\n"))
    kinds = [part.get_content_type() for part in archive.walk()]
    assert kinds == ["multipart/mixed", "text/x-shellscript", "text/cloud-config"]
    assert "packages: [jq]" in archive.get_payload()[1].get_payload()


def test_without_a_switch_own_text_stands_alone_and_without_both_there_is_none() -> None:
    assert decoded(own="#!/bin/sh\ntrue\n", has_switch=False) == "#!/bin/sh\ntrue\n"
    assert decoded(has_switch=False) == ""


def test_the_same_parts_make_the_same_text_so_that_a_call_can_be_repeated() -> None:
    assert decoded(own="#!/bin/sh\n") == decoded(own="#!/bin/sh\n")


@pytest.mark.parametrize("own", ["echo hello", "#!/bin/sh\n" + "x" * MAX_BYTES])
def test_text_that_would_do_nothing_is_refused(own: str) -> None:
    with pytest.raises(SpecError, match="user_data"):
        user_data(expires_s="0", own=own)
