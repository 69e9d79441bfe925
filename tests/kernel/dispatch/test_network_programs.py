"""Programs as people use them behind `network = "ask"`: over HTTP and TLS, with and without proxy."""

from __future__ import annotations

import asyncio
import http.server
import io
import json
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.dispatch.permission.confirmations import Scope
from tests.kernel.dispatch.test_network_connects import DIRECT, World, backends, base, names, world

__all__ = ["backends", "base", "names", "world"]

ASYNCIO = """
import asyncio, ssl, sys
async def main(host, port, tls):
    context = ssl.create_default_context(cafile="ca.pem") if tls else None
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=context), 10)
    writer.write(b"GET /hello HTTP/1.0\\r\\n\\r\\n")
    print((await reader.read()).decode().split()[-1])
asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "https"))
"""
JAVA = """
import java.net.URI;
import java.net.http.*;
public class Fetch {
    public static void main(String[] all) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(all[0])).build();
        System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        java.net.Socket plain = new java.net.Socket("srv.test", Integer.parseInt(all[1]));
        System.out.println(plain.isConnected());
    }
}
"""
PROGRAMS = {
    "curl": ("curl -sS --connect-timeout 5 --cacert ca.pem {url}/hello", "hello\n"),
    "wget": ("wget -q --tries=1 --ca-certificate=ca.pem -O- {url}/hello", "hello\n"),
    "git": ("GIT_SSL_CAINFO=$PWD/ca.pem git clone -q {url}/repository.git got && cat got/file", "hello\n"),
    "pip": (
        sys.executable + " -m pip install -q --disable-pip-version-check --trusted-host srv.test --retries 0"
        " --target got -i {url}/simple package && cat got/package.py",
        "hello = 1\n",
    ),
    "npm": (
        "echo '{{}}' > package.json; npm --silent --cafile ca.pem --fetch-retries 0 --cache ./cache"
        " --registry {url}/ install package >&2; cat node_modules/package/index.js",
        "hello\n",
    ),
    "node": (
        "NODE_EXTRA_CA_CERTS=$PWD/ca.pem node -e \"fetch('{url}/hello').then(r => r.text()).then(console.log)\"",
        "hello\n\n",
    ),
    "asyncio": (DIRECT + "/usr/bin/python3 -I it.py srv.test {port} {scheme}", "hello\n"),
    "java": ("java Fetch.java {url}/hello {port}", "hello\ntrue\n"),
}
NEEDS = {"asyncio": "/usr/bin/python3", "pip": sys.executable}
QUICK = ("curl", "git", "node", "asyncio")


def _content(root: Path, workspace: Path, url: str) -> None:
    """What the programs fetch: a file, a repository and a package for each registry."""
    (root / "hello").write_text("hello\n")
    work = root / "work"
    script = (
        f"git init -q {work} && cd {work} && echo hello > file && git add file && "
        f"git -c user.name=a -c user.email=a@example.org commit -qm x && "
        f"git clone -q --bare {work} {root}/repository.git && cd {root}/repository.git && git update-server-info"
    )
    subprocess.run(["sh", "-c", script], check=True, capture_output=True)
    index = root / "simple/package"
    index.mkdir(parents=True)
    info = "package-1.0.dist-info"
    with zipfile.ZipFile(index / "package-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("package.py", "hello = 1\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: package\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    described = {"name": "package", "version": "1.0.0"}
    with tarfile.open(root / "package.tgz", "w:gz") as archive:
        for name, text in (("package.json", json.dumps(described)), ("index.js", "hello\n")):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    version = {**described, "dist": {"tarball": f"{url}/package.tgz"}}
    listed = {"name": "package", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (root / "package").write_text(json.dumps(listed))
    (workspace / "it.py").write_text(ASYNCIO)
    (workspace / "Fetch.java").write_text(JAVA)


def _certificate(base: Path) -> ssl.SSLContext:
    key, certificate = base / "key.pem", base / "ws/ca.pem"
    names = ("-subj", "/CN=srv.test", "-addext", "subjectAltName=DNS:srv.test")
    make = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names)
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.fixture
def serve(base: Path) -> Iterator[Any]:
    servers = []

    def start(scheme: str) -> tuple[str, int]:
        root = base / "www"
        root.mkdir()

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(root))

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        (base / "ws/ca.pem").touch()
        if scheme == "https":
            server.socket = _certificate(base).wrap_socket(server.socket, server_side=True)
        port = server.server_address[1]
        _content(root, base / "ws", f"{scheme}://srv.test:{port}")
        threading.Thread(target=server.serve_forever).start()
        servers.append(server)
        return f"{scheme}://srv.test:{port}", port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _command(program: str, url: str, port: int) -> tuple[str, str]:
    if shutil.which(NEEDS.get(program, program)) is None:
        pytest.skip(f"needs {program}")
    command, output = PROGRAMS[program]
    return command.format(url=url, port=port, scheme=url.partition(":")[0]), output


async def _fetches(world: World, program: str, url: str, port: int, prefix: str, patience_s: float = 60) -> None:
    command, output = _command(program, url, port)
    bench = world.start(confirmation_timeout_s=patience_s)
    try:
        result = await bench.run("shell", {"command": prefix + command, "timeout_seconds": 300})
    finally:
        world.sandbox.close()
    assert result.text.startswith(output), result.text
    hosts = [each.arguments["host"] for each in world.questions]
    assert hosts == [f"srv.test:{port}", f"private:srv.test:{port}"]


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("program", QUICK)
async def test_a_program_fetches_from_a_host_that_is_approved_by_name(
    world: World, serve: Any, program: str, scheme: str
) -> None:
    await _fetches(world, program, *serve(scheme), DIRECT)


@pytest.mark.soak
@pytest.mark.parametrize("prefix", [DIRECT, ""], ids=["direct", "proxy"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("program", PROGRAMS)
async def test_each_program_fetches_either_way(
    world: World, serve: Any, program: str, scheme: str, prefix: str
) -> None:
    if scheme == "https" and program in ("java", "pip"):
        pytest.skip("it takes no certificate of ours")
    await _fetches(world, program, *serve(scheme), prefix)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hold_s", [20, 130])
@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_waits_for_the_answer_as_long_as_it_takes(
    world: World, serve: Any, program: str, hold_s: int
) -> None:
    url, port = serve("http")
    world.release.clear()

    async def answer_later() -> None:
        await world.asked.wait()
        await asyncio.sleep(hold_s)
        world.release.set()

    answering = asyncio.create_task(answer_later())
    await _fetches(world, program, url, port, DIRECT, hold_s + 60)
    await answering


async def test_a_hundred_hosts_are_a_question_each(world: World) -> None:
    world.scope = Scope.RUN
    world.allows = False
    fetches = f"seq 100 | xargs -P 20 -I @ curl -s http://srv@.test:{world.port}/; echo done"
    result = await world.run(fetches)
    assert result.text.startswith("done\n")
    assert len({each.arguments["host"] for each in world.questions}) == 100


async def test_an_interrupt_ends_a_program_that_waits(world: World) -> None:
    world.release.clear()
    command = f"timeout -s INT 1 curl -s http://srv.test:{world.port}/; echo ended $?; echo on"
    result = await world.run(command)
    assert result.text == "ended 124\non\n"
