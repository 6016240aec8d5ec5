"""The only I/O with AWS. Calls are bounded in time and number; credentials come from outside, and go into no message.

Every call that we make may be repeated: what creates has a token or a name of its own, what removes names ids.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.clouds.aws.states import Reaction, reaction
from airflow_llmsched.errors import CouldNotLookError
from airflow_llmsched.ports import Clock

WAITS_S = (0.5, 1.0, 2.0, 4.0)
"""Between the tries of one call that was throttled, failed on the server's side, or was not answered."""
CONNECT_LIMIT_S = 10.0
READ_LIMIT_S = 60.0

_AGAIN = (Reaction.AGAIN, Reaction.UNKNOWN)

_made: WeakKeyDictionary[Any, dict[tuple[str, str, str | None], Any]] = WeakKeyDictionary()
"""The SDK's clients of each session: they take long to make, are safe between threads, and outlive their adapter."""
_making = threading.Lock()


class AwsError(Exception):
    """AWS refused a call, or did not answer it. ``meant`` is the reaction to ``code``; None: a code new to us."""

    def __init__(self, *, operation: str, region: str, code: str, message: str, meant: Reaction | None) -> None:
        self.operation = operation
        self.region = region
        self.code = code
        self.message = message
        self.meant = meant
        super().__init__(f"{operation} in {region}: {code}: {message}")


class AwsClient:
    """Calls AWS through ``session`` (a ``boto3.Session``; None: boto3's own chain of credentials). Thread-safe.

    A session that refreshes its credentials by itself, as that of a role does, serves a run of any length.
    """

    def __init__(self, session: Any = None, *, endpoint_url: str = "", clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._session = session
        self._endpoint_url = endpoint_url or None

    def call(self, operation: str, *, region: str, service: str = "ec2", **body: Any) -> dict[str, Any]:
        """Return the answer to an operation (``describe_instances``), tried again while that may help.

        Raises ``AwsError``: as ``UNKNOWN`` when any of the tries may have been carried out, whatever the last one said.
        """
        heard = True
        for wait_s in (*WAITS_S, None):
            try:
                answer: dict[str, Any] = getattr(self._client(service, region), operation)(**body)
            except Exception as error:  # noqa: BLE001 - what is none of AWS's own is raised again
                failure = _failure(error, operation=operation, region=region)
            else:
                return answer
            if failure.meant not in _AGAIN:
                raise failure
            heard = heard and failure.meant is Reaction.AGAIN
            if wait_s is None:
                break
            self.clock.sleep(wait_s)
        failure.meant = Reaction.AGAIN if heard else Reaction.UNKNOWN
        raise failure

    def look(self, operation: str, *, region: str, service: str = "ec2", **body: Any) -> dict[str, Any]:
        """Return the answer to an operation that changes nothing. Raises ``CouldNotLookError``."""
        try:
            return self.call(operation, region=region, service=service, **body)
        except AwsError as error:
            raise CouldNotLookError(f"AWS did not say: {error}") from error

    def rows(
        self, operation: str, field: str, *, region: str, service: str = "ec2", **body: Any
    ) -> list[dict[str, Any]]:
        """Return what is listed under ``field`` of the answer, of all its pages. Raises ``CouldNotLookError``."""
        found: list[dict[str, Any]] = []
        page: Mapping[str, Any] = {}
        while True:
            page = self.look(operation, region=region, service=service, **body)
            found.extend(page.get(field, ()))
            if not page.get("NextToken"):
                return found
            body["NextToken"] = page["NextToken"]

    def _client(self, service: str, region: str) -> Any:
        import boto3  # noqa: PLC0415 - the SDK is loaded by whoever uses it
        from botocore.config import Config  # noqa: PLC0415 - as above

        with _making:
            if self._session is None:
                self._session = boto3.Session()
            clients = _made.setdefault(self._session, {})
            wanted = (service, region, self._endpoint_url)
            if wanted not in clients:
                config = Config(
                    connect_timeout=CONNECT_LIMIT_S, read_timeout=READ_LIMIT_S, retries={"total_max_attempts": 1}
                )
                clients[wanted] = self._session.client(
                    service, region_name=region, endpoint_url=self._endpoint_url, config=config
                )
            return clients[wanted]


def _failure(error: Exception, *, operation: str, region: str) -> AwsError:
    """Return ``error`` in our terms. One that is not of the SDK's is raised as it is."""
    from botocore import exceptions  # noqa: PLC0415 - the SDK is loaded by whoever uses it
    from botocore.parsers import ResponseParserError  # noqa: PLC0415 - as above

    if isinstance(error, exceptions.ClientError):
        said = error.response.get("Error", {})
        code, message = str(said.get("Code", "")), str(said.get("Message", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        meant = reaction(code)
        # A code that is new to us, with a status that says whose fault it is.
        meant = Reaction.UNKNOWN if meant is None and status >= 500 else meant
    elif isinstance(error, exceptions.ParamValidationError):
        code, message, meant = "ParamValidationError", str(error), Reaction.FIX
    elif isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        code, message, meant = "NoCredentials", str(error), Reaction.FIX
    elif isinstance(error, exceptions.CredentialRetrievalError):
        code, message, meant = "CredentialRetrievalError", str(error), Reaction.AGAIN
    elif isinstance(error, exceptions.BotoCoreError | ResponseParserError):
        # Among them an answer that is not AWS's at all, such as the error page of a proxy in between.
        code, message, meant = type(error).__name__, str(error), Reaction.UNKNOWN
    else:
        raise error
    return AwsError(operation=operation, region=region, code=code, message=message, meant=meant)
