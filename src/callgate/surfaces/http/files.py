"""The files of the dashboard, as they lie in the package. `/` is its page.

Which there are is found once, at the start: a path that is none of them is not looked for, so
there is nothing to escape from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from callgate.surfaces.http.responses import HttpResponse, content_length, respond

STATIC = os.path.join(os.path.dirname(__file__), "static")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".map": "application/json",
    ".webmanifest": "application/manifest+json",
}
_PAGE = "index.html"


class File(NamedTuple):
    path: str
    media_type: str


def find_files(root: str = STATIC) -> Mapping[str, File]:
    """Each file by the path under which it is asked for; other kinds of files are not served."""
    found: dict[str, File] = {}
    for directory, _, names in os.walk(root):
        for name in names:
            media_type = _TYPES.get(os.path.splitext(name)[1])
            if media_type is not None and not name.startswith("."):
                path = os.path.join(directory, name)
                found["/" + os.path.relpath(path, root)] = File(path, media_type)
    if f"/{_PAGE}" in found:
        found["/"] = found.pop(f"/{_PAGE}")
    return found


class Files:
    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self._response(scope), scope, receive, send)

    def _response(self, scope: Scope) -> HttpResponse:
        file = self._files[scope["path"]]
        if scope["method"] not in ("GET", "HEAD"):
            return HttpResponse(405, [(b"allow", b"GET, HEAD"), content_length(b"")])
        try:
            with open(file.path, "rb") as opened:
                content = opened.read()
        except OSError:  # taken away since
            return HttpResponse(404, [content_length(b"")])
        tag = b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'
        headers = [(b"etag", tag), (b"cache-control", b"no-cache")]
        if tag in _known(scope):
            return HttpResponse(304, headers)
        headers += [(b"content-type", file.media_type.encode()), content_length(content)]
        return HttpResponse(200, headers, b"" if scope["method"] == "HEAD" else content)


def _known(scope: Scope) -> list[bytes]:
    given = [value for key, value in scope["headers"] if key == b"if-none-match"]
    return [each.strip().removeprefix(b"W/") for line in given for each in line.split(b",")]
