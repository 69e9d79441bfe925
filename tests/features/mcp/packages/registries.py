"""A registry of npm and an index of Python packages on the loopback, with one package in several
versions."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.features.mcp.packages.authorities import Authority

SERVER = Path(__file__).with_name("greedy_server.py")
TOKEN = "token-of-the-registry"  # noqa: S105 of nobody


class Registry:
    """What it has, and who asked for it."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self.versions = ["1.0.0"]
        self.tokens: list[str | None] = []
        self.port = 0
        self.scheme, self.host = "http", "127.0.0.1"
        self.needs_token = False
        self.scope = ""
        """Of the name of its npm package, such as `@team`."""
        self.held: threading.Event | None = None
        """Answers wait for it."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        if path in (f"/{self._name}", f"/{self._name.replace('/', '%2f')}"):
            return "application/json", self._packument()
        if path == "/simple/greedy-server/":
            names = [f"greedy_server-{each}-py3-none-any.whl" for each in self.versions]
            links = "".join(f'<a href="/files/{name}">{name}</a>' for name in names)
            return "text/html", f"<html><body>{links}</body></html>".encode()
        for version in self.versions:
            if path == f"/files/greedy-server-{version}.tgz":
                return "application/octet-stream", self._npm(version)
            if path == f"/files/greedy_server-{version}-py3-none-any.whl":
                return "application/octet-stream", self._wheel(version)
        return None

    def _source(self, version: str) -> bytes:
        text = SERVER.read_text().replace("VERSION_OF_THE_PACKAGE", version)
        return text.replace("PATH_OF_THE_WORKSPACE", str(self._workspace)).encode()

    @property
    def _name(self) -> str:
        return f"{self.scope}/greedy-server".removeprefix("/")

    def _manifest(self, version: str) -> dict[str, object]:
        return {
            "name": self._name,
            "version": version,
            "bin": {"greedy-server": "server.py"},
            "scripts": {"postinstall": "python3 server.py --install"},
            "hasInstallScript": True,
        }

    def _packument(self) -> bytes:
        versions = {}
        for version in self.versions:
            digest = base64.b64encode(hashlib.sha512(self._npm(version)).digest()).decode()
            dist = {
                "tarball": f"{self.url}/files/greedy-server-{version}.tgz",
                "integrity": f"sha512-{digest}",
            }
            versions[version] = {**self._manifest(version), "dist": dist}
        latest = {"latest": self.versions[-1]}
        return json.dumps({"name": self._name, "dist-tags": latest, "versions": versions}).encode()

    def _npm(self, version: str) -> bytes:
        made = io.BytesIO()
        files = {
            "package.json": json.dumps(self._manifest(version)).encode(),
            "server.py": self._source(version),
        }
        with tarfile.open(fileobj=made, mode="w") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"package/{name}")
                entry.size, entry.mode = len(content), 0o755
                archive.addfile(entry, io.BytesIO(content))
        return made.getvalue()

    def _wheel(self, version: str) -> bytes:
        made = io.BytesIO()
        info = f"greedy_server-{version}.dist-info"
        files = {
            "greedy_server.py": self._source(version),
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: greedy-server\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": "[console_scripts]\ngreedy-server = greedy_server:main\n",
        }
        listed = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
        with zipfile.ZipFile(made, "w") as archive:
            for name, content in {**files, f"{info}/RECORD": listed}.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        return made.getvalue()


@contextmanager
def serving(workspace: Path, authority: Authority | None = None) -> Iterator[Registry]:
    """With an authority it speaks TLS."""
    registry = Registry(workspace)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.tokens.append(self.headers.get("authorization"))
            if registry.held is not None:
                registry.held.wait(60)
            found = registry.answer(self.path)
            status = 404 if found is None else 200
            if registry.needs_token and self.headers.get("authorization") != f"Bearer {TOKEN}":
                found, status = None, 401
            self.send_response(status)
            if found is not None:
                self.send_header("content-type", found[0])
            body = b"" if found is None else found[1]
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # uv asks how large something is

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # a client that trusts another authority
                pass

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.port = server.server_address[1]
    if authority is not None:
        registry.scheme = "https"
        server.socket = authority.context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        if registry.held is not None:
            registry.held.set()
        server.shutdown()
        server.server_close()
        thread.join()
