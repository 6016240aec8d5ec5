"""Paths in specs: relative to the spec's folder, and kept below it when they come from a DAG-run form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRules:
    """``base`` is the folder relative paths start from (None: there is none), and the fence of ``confined`` ones."""

    base: Path | None
    confined: bool

    def resolve(self, text: str) -> str:
        """Return an absolute path, or a URI of another scheme than ``file`` as it is.

        Raises:
            ValueError: with a hint, when the path has nothing to be relative to or leaves the folder it must stay in.
        """
        if _URI.match(text):
            parts = urlsplit(text)
            if parts.scheme.lower() != "file":
                return text
            if parts.netloc not in {"", "localhost"}:
                raise ValueError("is a file URI of another host; write file:///path")
            text = unquote(parts.path)
        if text.startswith("~"):
            raise ValueError("starts with '~', which means another folder on every machine; write the full path")
        if "\0" in text:
            raise ValueError("has a NUL character, which no path can have")
        path = Path(text)
        if self.base is None and (self.confined or not path.is_absolute()):
            raise ValueError("has no spec file to be relative to; write a spec file, or an absolute path in one")
        # normpath semantics are not enough: a symlink below the base may lead out of it
        resolved = (self.base / path if self.base else path).resolve()
        if self.confined and self.base is not None and not resolved.is_relative_to(self.base.resolve()):
            raise ValueError(f"leaves {self.base}; a DAG-run form may only name paths below it, a spec file any")
        return str(resolved)
