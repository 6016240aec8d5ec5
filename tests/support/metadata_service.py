"""What the metadata services of clouds answer, on a port of this machine."""

from __future__ import annotations

import json
from typing import Any

from tests.support.http_server import LocalServer, QuietHandler

TOKEN = "t0ken"
NAME = "ls-x_3"


class MetadataService(LocalServer):
    """All three at once. ``aws`` is the instance action, ``azure`` the events, ``gcp`` whether it was preempted."""

    def __init__(self, *, host: str = "127.0.0.1") -> None:
        self.aws: dict[str, Any] | None = None
        self.azure: list[dict[str, Any]] = []
        self.gcp = "FALSE"
        self.status = 200
        self.num_asked = 0
        service = self

        class Handler(QuietHandler):
            def _answer(self) -> None:
                service.num_asked += 1
                status, text = service._said(self.command, self.path, dict(self.headers))
                status = service.status if service.status != 200 else status
                self.send_response_only(status)
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = _answer

        super().__init__(Handler, host=host)

    def _said(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Return what is said; 404 elsewhere, 400 without the header that keeps others' browsers out."""
        action = (404, "") if self.aws is None else (200, json.dumps(self.aws))
        events = json.dumps({"DocumentIncarnation": 1, "Events": self.azure})
        known = {
            "PUT /latest/api/token": ("x-aws-ec2-metadata-token-ttl-seconds", "21600", (200, TOKEN)),
            "GET /latest/meta-data/spot/instance-action": ("x-aws-ec2-metadata-token", TOKEN, action),
            "GET /metadata/instance/compute/name?api-version=2021-02-01&format=text": ("metadata", "true", (200, NAME)),
            "GET /metadata/scheduledevents?api-version=2020-07-01": ("metadata", "true", (200, events)),
            "GET /computeMetadata/v1/instance/preempted": ("metadata-flavor", "Google", (200, self.gcp)),
        }
        if f"{method} {path}" not in known:
            return 404, ""
        header, value, said = known[f"{method} {path}"]
        given = {name.lower(): each for name, each in headers.items()}.get(header)
        return said if given == value else (401 if "aws" in header else 400, "")


def azure_event(kind: str, *resources: str, not_before: str = "Sun, 29 Nov 2026 22:30:00 GMT") -> dict[str, Any]:
    return {
        "EventId": "A1",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(resources),
        "EventStatus": "Scheduled",
        "NotBefore": not_before,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
