"""An object store's HTTP side: presigned URLs to any store's objects, with the network's whims at a test's hand."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from typing import Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

from airflow_llmsched.errors import ObjectMissingError
from airflow_llmsched.ports import ObjectStore
from tests.support.http_server import LocalServer, QuietHandler


class SignedStore(LocalServer):
    """A ``Presigner`` that serves what it signs, for the length of a ``with`` block.

    ``cut`` drops every connection, ``refuse`` answers with that status, ``slow_s`` delays each answer, ``lose_answers``
    stores that many PUTs and then hangs up.
    """

    def __init__(self, store: ObjectStore, *, host: str = "127.0.0.1") -> None:
        self.cut = False
        self.refuse: int | None = None
        self.slow_s = 0.0
        self.lose_answers = 0
        self.clock_s = time.time
        self.puts: list[str] = []
        self._store = store
        self._secret = hashlib.sha256(repr(store).encode()).digest()
        super().__init__(self._handler(), host=host)

    def presign(self, method: Literal["GET", "PUT"], keys: Sequence[str], *, lifetime_s: float) -> Sequence[str]:
        expires = f"{self.clock_s() + lifetime_s:.3f}"
        return [
            f"{self.address}/{quote(key)}?expires={expires}&signature={self._sign(method, key, expires)}"
            for key in keys
        ]

    def _sign(self, method: str, key: str, expires: str) -> str:
        return hmac.new(self._secret, f"{method}\n{key}\n{expires}".encode(), hashlib.sha256).hexdigest()

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        """Return status and body, None to hang up."""
        if self.cut:
            return None
        time.sleep(self.slow_s)
        if self.refuse is not None or not self._is_signed(method, path):
            return self.refuse or 403, b""
        key = unquote(urlsplit(path).path.lstrip("/"))
        if method == "PUT":
            self._store.put(key, body)
            self.puts.append(key)
            if self.lose_answers:
                self.lose_answers -= 1
                return None
            return 200, b""
        try:
            return 200, self._store.get(key)
        except ObjectMissingError:
            return 403, b""  # as S3 answers whoever may not list

    def _is_signed(self, method: str, path: str) -> bool:
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        expires = query["expires"][0]
        expected = self._sign(method, unquote(parts.path.lstrip("/")), expires)
        return hmac.compare_digest(query["signature"][0], expected) and self.clock_s() <= float(expires)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        signed = self

        class Handler(QuietHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = signed._answer(self.command, self.path, body)
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response_only(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                with contextlib.suppress(OSError):  # whoever asked may have gone
                    self.end_headers()
                    self.wfile.write(answer[1])

            do_GET = do_PUT = _serve

        return Handler
