"""moto's server, one request after the other, on a free port that its log names.

S3 lets one of several writers create a key. moto looks first and writes then, so of two at once both may.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


def main() -> None:
    app = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def in_turn(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with turn:
            answer: Iterable[bytes] = app(environ, start_response)
            return answer

    run_simple("127.0.0.1", 0, in_turn, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
