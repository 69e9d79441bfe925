"""The image: what its Dockerfile installs, who runs in it, and how it gets its settings."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import time
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.deploy.programs import PROJECT, TOOLS, accept, run
from tests.needs import needs

DOCKERFILE = PROJECT / "Dockerfile"
ENTRYPOINT = PROJECT / "deploy" / "entrypoint.py"


def instructions() -> list[tuple[str, str]]:
    """Each instruction and what it is given, in their order."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def copied() -> list[str]:
    """What is copied from the project into the image."""
    lines = [shlex.split(rest)[:-1] for rest in given("COPY") if "--from" not in rest]
    return [word for words in lines for word in words if not word.startswith("--")]


def given(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


@needs("deploy tools")
def test_hadolint_finds_nothing_wrong() -> None:
    run(str(TOOLS / "bin" / "hadolint"), "--no-color", str(DOCKERFILE))


def requirements(directory: Path) -> str:
    """What the first RUN selects of constraints.txt, by its own commands."""
    (_, first, *_) = given("RUN")
    selecting = first.partition("&& python -m venv")[0]
    (directory / "constraints.txt").write_bytes((PROJECT / "constraints.txt").read_bytes())
    subprocess.run(["bash", "-euo", "pipefail", "-c", selecting], cwd=directory, check=True, timeout=60)
    return (directory / "needs.txt").read_text()


@pytest.mark.parametrize(
    ("image", "is_taken"),
    [
        ("python:3.12-slim-bookworm", False),
        ("python:3.12-slim-bookworm@sha256:" + "0" * 63, False),
        ("python:3.12-slim-bookworm@sha256:" + "0a" * 32, True),
    ],
)
def test_a_base_image_without_a_digest_is_refused(image: str, is_taken: bool) -> None:
    (check, *_) = given("RUN")
    ran = subprocess.run(["bash", "-c", check], env={"PYTHON": image}, capture_output=True, text=True, timeout=60)
    assert (ran.returncode == 0, "pin_images" in ran.stderr) == (is_taken, not is_taken)


def test_the_digests_of_all_images_are_found_and_written_for_compose(tmp_path: Path) -> None:
    """With a program in the place of docker that knows no registry."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "pin.sh").write_bytes((PROJECT / "scripts" / "pin_images.sh").read_bytes())
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$ANSWER"\n')
    docker.chmod(0o755)
    (tmp_path / ".env").write_text("CALLGATE_PUBLIC_URL=http://x\nCALLGATE_CADDY_IMAGE=caddy:old\n")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    def pin(answer: str) -> tuple[int, list[str]]:
        ran = subprocess.run(
            ["sh", "scripts/pin.sh"],
            cwd=tmp_path,
            env={"PATH": path, "ANSWER": answer},
            stderr=subprocess.PIPE,
            timeout=60,
        )
        return ran.returncode, (tmp_path / ".env").read_text().splitlines()

    code, lines = pin("no such image")
    assert code != 0 and lines[-1] == "CALLGATE_CADDY_IMAGE=caddy:old", "nothing was changed"
    code, lines = pin("sha256:" + "0a" * 32)
    named = dict(line.split("=", 1) for line in lines)
    assert code == 0 and named.pop("CALLGATE_PUBLIC_URL") == "http://x"
    compose = (PROJECT / "compose.yaml").read_text()
    assert set(named) == set(re.findall(r"\$\{(CALLGATE_\w+_IMAGE):\?", compose))
    assert all(re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image) for image in named.values())
    tags = [image for image in re.findall(r"image: (\S+)", compose) if "${" not in image]
    assert set(tags) == {"callgate:local"}, "which is built here"


def test_the_image_gets_the_driver_of_the_database_and_no_tool_of_development(tmp_path: Path) -> None:
    text = requirements(tmp_path)
    names = re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)
    assert {"msgspec", "psycopg", "psycopg-binary"} <= set(names)
    assert not {"pytest", "mypy", "ruff", "psycopg-pool"} & set(names)
    blocks = re.findall(r"^[a-z0-9-]+==[^\n]*\\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.MULTILINE)
    assert len(blocks) == len(names) == len(set(names))


@pytest.mark.soak
def test_what_the_image_installs_runs(tmp_path: Path) -> None:
    """The RUN lines of the first stage, with another directory in place of /opt/callgate."""
    source = tmp_path / "src"
    source.mkdir()
    for name in copied():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        run("cp", "-R", str(PROJECT / name), str(source / name))
    target = str(tmp_path / "opt")
    *_, last_stage = (place for place, (word, _) in enumerate(instructions()) if word == "FROM")
    build = {**os.environ, "PYTHON": f"python:3.12@sha256:{'0' * 64}"}
    for command in [rest for word, rest in instructions()[:last_stage] if word == "RUN"]:
        words = command.replace("/opt/callgate", target).replace("python -m venv", f"{sys.executable} -m venv")
        subprocess.run(["bash", "-euo", "pipefail", "-c", words], cwd=source, env=build, check=True, timeout=900)
    env = {"PATH": f"{target}/bin:{os.environ['PATH']}", "CALLGATE_HOME": str(tmp_path / "home")}
    assert "callgate" in run(f"{target}/bin/callgate", "--version", env=env)
    assert run(f"{target}/bin/python", "-c", "import psycopg; print(psycopg.pq.__impl__)").strip() == "binary"


def test_the_builder_is_sent_what_is_copied_and_little_else() -> None:
    lines = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    let_in = [line[1:] for line in lines if line.startswith("!")]
    assert sorted(copied()) == sorted(let_in)
    assert lines[0] == "*" and not any(fnmatch.fnmatch("secrets/key", each) for each in let_in)


def test_nobody_is_root_and_our_command_line_takes_what_is_run() -> None:
    assert given("USER") == ["10001:10001"]
    (command,) = given("CMD")
    words = json.loads(command)
    accept(words)
    port = words[words.index("--http") + 1].rpartition(":")[2]
    assert given("EXPOSE") == [port]
    (check,) = given("HEALTHCHECK")
    assert json.loads(check.partition("CMD")[2]) == ["callgate-entrypoint", "check", f"http://127.0.0.1:{port}/healthz"]
    assert json.loads(given("ENTRYPOINT")[0]) == ["callgate-entrypoint"]


def test_the_file_holds_no_secret() -> None:
    for word in ("ARG", "ENV"):
        for rest in given(word):
            assert not re.search(r"(?i)password|secret|token|_key", rest)


class Started:
    """The entrypoint, with a program in place of callgate that tells what it was given."""

    def __init__(self, directory: Path, base: str | None, **variables: str) -> None:
        self.home = directory / "home"
        bin = directory / "bin"
        bin.mkdir()
        (bin / "callgate").write_text(
            f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
        )
        (bin / "callgate").chmod(0o755)
        settings = directory / "base.toml"
        if base is not None:
            settings.write_text(base)
        env = {
            "PATH": f"{bin}:{os.environ['PATH']}",
            "CALLGATE_HOME": str(self.home),
            "CALLGATE_SETTINGS": str(settings),
            **variables,
        }
        printed = subprocess.run(
            [sys.executable, str(ENTRYPOINT), "serve", "--label", "a b"],
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        self.words, self.environ = json.loads(printed)

    @property
    def settings(self) -> object:
        return tomllib.loads((self.home / "settings.toml").read_text())


URL = "postgresql://user:p\"a\\ss'word@db:5432/callgate?sslmode=verify-full"


def test_variables_go_into_the_settings_and_not_to_what_callgate_starts(tmp_path: Path) -> None:
    base = "[instance]\ndrain_seconds = 5\n[limits]\nconcurrency = 2\n"
    started = Started(
        tmp_path,
        base,
        CALLGATE_STORE_URL=URL,
        CALLGATE_ADVERTISE_URL="http://one:4177",
        CALLGATE_PUBLIC_URL="",
        CALLGATE_SECRETS_KEY="stays",
    )
    assert started.words == ["serve", "--label", "a b"]
    assert started.settings == {
        "instance": {"drain_seconds": 5, "advertise_url": "http://one:4177"},
        "limits": {"concurrency": 2},
        "store": {"url": URL},
    }
    assert started.environ["CALLGATE_SECRETS_KEY"] == "stays"
    assert not [name for name in started.environ if name.startswith("CALLGATE_STORE")]
    assert stat.S_IMODE((started.home / "settings.toml").stat().st_mode) == 0o600
    assert stat.S_IMODE(started.home.stat().st_mode) == 0o700
    assert os.listdir(started.home) == ["settings.toml"]


def test_without_file_and_variables_the_home_keeps_its_settings(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "settings.toml").write_text("mode = 'read'\n")
    assert Started(tmp_path, None).settings == {"mode": "read"}


def test_without_a_database_the_command_serves_one_person(tmp_path: Path) -> None:
    """`docker run callgate`, with other directories in place of the image's: no settings, no variables."""
    words = json.loads(given("CMD")[0])
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    workspace.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words[words.index("--http") + 1] = address
    words[words.index("--workspace") + 1] = str(workspace)
    bin = Path(sys.executable).parent
    env = {"PATH": f"{bin}:{os.environ['PATH']}", "HOME": str(tmp_path), "CALLGATE_HOME": str(home)}
    with subprocess.Popen([sys.executable, str(ENTRYPOINT), *words], env=env, cwd=workspace) as server:
        try:
            _await_health(f"http://{address}/healthz", server)
            command = [str(bin / "callgate"), "call", "write_file", "path=a", "content=x", "--yes"]
            subprocess.run(command, env=env, cwd=workspace, check=True, capture_output=True, timeout=60)
        finally:
            server.terminate()
            assert server.wait(60) == 0
    assert (workspace / "a").read_text() == "x"
    assert (home / "callgate.db").exists() and not (home / "settings.toml").exists()


def _await_health(url: str, server: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + 60
    while subprocess.run([sys.executable, str(ENTRYPOINT), "check", url], capture_output=True).returncode:
        assert server.poll() is None and time.monotonic() < ends_at


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_follows_the_answer(status: int | None, code: int) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status or 500)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        url = f"http://127.0.0.1:{server.server_port}/healthz"
        thread = Thread(target=server.serve_forever)
        thread.start()
        if status is None:
            server.shutdown()
            server.server_close()
        ran = subprocess.run([sys.executable, str(ENTRYPOINT), "check", url], capture_output=True, timeout=60)
        server.shutdown()
        thread.join()
    assert ran.returncode == code
