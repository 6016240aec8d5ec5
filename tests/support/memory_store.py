"""An object store in memory, for tests under a virtual clock, and its failures on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_llmsched.errors import ObjectExistsError, ObjectMissingError
from airflow_llmsched.ports import ObjectInfo


class MemoryStore:
    """``ports.ObjectStore`` in a dict. ``before_create`` and ``after_create`` may raise, as a crash there would."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before_create: Callable[[str], None] = lambda _key: None
        self.after_create: Callable[[str], None] = lambda _key: None

    @property
    def uri(self) -> str:
        return "memory://"

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissingError(f"no object {key!r}")
        return self.objects[key]

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def create(self, key: str, data: bytes) -> None:
        self.before_create(key)
        if key in self.objects:
            raise ObjectExistsError(f"object {key!r} exists")
        self.objects[key] = data
        self.after_create(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectInfo(key=key, num_bytes=len(self.objects[key]), modified_s=0.0)

    def folders(self, prefix: str) -> Iterator[str]:
        below = (key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))
        yield from sorted({name.partition("/")[0] for name in below if "/" in name})

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)
