"""A server of this process on a port of its own, for the length of a block: what stand-ins for services are made on."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        return


class LocalServer:
    """Serves requests by ``handler`` from :meth:`__enter__` to :meth:`__exit__`. ``address`` is known before.

    It listens on ``host`` alone.
    """

    def __init__(self, handler: type[BaseHTTPRequestHandler], *, host: str = "127.0.0.1") -> None:
        self._server = ThreadingHTTPServer((host, 0), handler)
        self._server.daemon_threads = True
        self.address = f"http://{host}:{self._server.server_port}"

    def __enter__(self) -> Self:
        # Polled often: that is how long ``shutdown`` takes.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
