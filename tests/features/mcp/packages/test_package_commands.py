"""Command lines that run a package, what fetching sees, and what is believed of what was fetched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate.core.errors import ToolError
from callgate.features.mcp.client import directories, package_commands
from callgate.features.mcp.client.manager_settings import manager_settings
from callgate.features.mcp.client.package_commands import PackageCommand, is_runner, parse


@pytest.mark.parametrize(
    ("line", "fetching", "packages", "executable", "arguments"),
    [
        ("npx -y some-server --flag x", "npm", "some-server", None, "--flag x"),
        ("/opt/n/npx --yes @a/b@1.2 -- x", "/opt/n/npm", "@a/b@1.2", None, "-- x"),
        ("npx -p a --package=b run-it -p c", "npm", "a b", "run-it", "-p c"),
        ("npm exec -y --package a -- run-it --x", "npm", "a", "run-it", "--x"),
        ("npm x some-server -- --x", "npm", "some-server", None, "--x"),
        ("npx -y github:someone/server", "npm", "github:someone/server", None, ""),
        ("uvx some-server --x", "uv", "some-server", "some-server", "--x"),
        ("uvx some-server@1.2", "uv", "some-server==1.2", "some-server", ""),
        ("uvx some-server[a]@latest", "uv", "some-server[a]", "some-server", ""),
        ("uvx --from git+https://x.example/y --with=b run-it", "uv", "git+https://x.example/y b", "run-it", ""),
        ("/opt/u/uv tool run -q some-server", "/opt/u/uv", "some-server", "some-server", ""),
        ("pipx run some-server==1 x", "python3", "some-server==1", "some-server", "x"),
        ("pipx run --spec a==2 --python 3.12 run-it", "python3.12", "a==2", "run-it", ""),
    ],
)
def test_a_command_that_runs_a_package_is_understood(
    line: str, fetching: str, packages: str, executable: str | None, arguments: str
) -> None:
    found = parse(line.split())
    assert found is not None
    assert (found.program, " ".join(found.packages)) == (fetching, packages)
    assert (found.executable, " ".join(found.arguments)) == (executable, arguments)


def test_options_for_a_registry_are_passed_on() -> None:
    npm = parse("npx --registry https://r.example -y x".split())
    pip = parse(["pipx", "run", "--pip-args", "--no-index -f https://r.example", "x"])
    assert npm is not None and npm.options == ("--registry", "https://r.example")
    assert pip is not None and pip.options == ("--no-index", "-f", "https://r.example")


@pytest.mark.parametrize(
    "line",
    [
        "npx",
        "npx -y",
        "npx -c run",
        "npx ./server",
        "npx /opt/x.tgz",
        "npx --prefix / x",
        "npx -p file:../x run",
        "npx --userconfig x y",
        "npm exec x --prefix=/ -- y",
        "npm install x",
        "uvx --from . run-it",
        "uvx --env-file x y",
        "uv run server.py",
        "uv tool install x",
        "pipx run --path x.py",
        "pipx run --pip-args --target=/x y",
        "pnpm dlx x",
        "bunx x",
        "deno run npm:x",
    ],
)
def test_a_command_that_is_not_understood_runs_as_it_is_with_private_caches(line: str) -> None:
    assert is_runner(line.split())
    assert parse(line.split()) is None


def test_what_is_no_runner_is_left_alone() -> None:
    assert not is_runner(["python", "npx"])
    assert parse(["python", "npx"]) is None


def test_fetching_sees_registries_and_no_other_secret(tmp_path: Path) -> None:
    (tmp_path / ".npmrc").write_text("//r.example/:_authToken=${COMPANY_TOKEN}\n")
    environ = {
        "PATH": "/bin",
        "COMPANY_TOKEN": "c",
        "NPM_CONFIG_REGISTRY": "r",
        "GITHUB_TOKEN": "g",
        "npm_config_prefix": "/usr",
        "PIP_TARGET": "/usr",
        "PIP_INDEX_URL": "i",
        "UV_INDEX": "u",
        "UV_TOOL_DIR": "/usr",
        "HTTPS_PROXY": "http://user:password@proxy",
        "OPENAI_API_KEY": "k",
    }
    home, downloads = str(tmp_path), "/fetch/downloads"
    seen = {
        manager: {
            name
            for name in manager_settings(manager, environ, home, downloads, []).step.env
            if environ.get(name) is not None and name != "PATH"
        }
        for manager in ("npm", "pip", "uv")
    }
    made = manager_settings("uv", environ, home, downloads, []).step.env
    assert seen["npm"] == {"COMPANY_TOKEN", "NPM_CONFIG_REGISTRY", "HTTPS_PROXY", "UV_TOOL_DIR"}
    assert seen["pip"] == {"PIP_INDEX_URL", "HTTPS_PROXY", "UV_TOOL_DIR"}
    assert seen["uv"] == {"UV_INDEX", "HTTPS_PROXY", "UV_TOOL_DIR"}
    assert made["UV_TOOL_DIR"] == "/fetch/downloads/uv-tools"


def test_what_package_managers_share_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / ".npm")
    wanted = [f"{tmp_path}/{name}" for name in (".npm", ".cache/uv/x", "link", ".cache", "notes")]
    assert [*directories.without_shared(wanted, str(tmp_path))] == [
        f"{tmp_path}/.cache",
        f"{tmp_path}/notes",
    ]


NPM = PackageCommand(manager="npm", program="npm", packages=("x",))


@pytest.mark.parametrize("name", ["package.json", "package-lock.json"])
def test_a_link_in_what_was_fetched_is_not_read(tmp_path: Path, name: str) -> None:
    """What is locked is given to the next fetch, whose scripts could read it there."""
    secret = tmp_path / "secret"
    secret.write_text('{"private": "key"}')
    place = tmp_path / "install"
    place.mkdir()
    for each in ("package.json", "package-lock.json"):
        (place / each).write_text("{}")
    (place / name).unlink()
    (place / name).symlink_to(secret)
    with pytest.raises(ToolError):
        package_commands.locks(NPM, str(place))
    (place / name).unlink()
    os.mkfifo(place / name)
    with pytest.raises(ToolError):
        package_commands.locks(NPM, str(place))


@pytest.mark.parametrize(
    ("programs", "chosen"),
    [
        ('"x.js"', "x"),
        ('{"y": "y.js"}', "y"),
        ('{"y": "", "x": ""}', "x"),
        ('{"y": "", "z": ""}', None),
        ('{"../../../../bin/sh": "x"}', None),
        ("{}", None),
    ],
)
def test_the_program_of_a_package_is_its_own(tmp_path: Path, programs: str, chosen: str | None) -> None:
    package = tmp_path / "node_modules/x"
    package.mkdir(parents=True)
    (tmp_path / "package.json").write_text('{"dependencies": {"x": "1"}}')
    (package / "package.json").write_text(f'{{"bin": {programs}}}')
    (tmp_path / "node_modules/.bin").mkdir()
    for name in ("x", "y"):
        (tmp_path / "node_modules/.bin" / name).write_text("")
    if chosen is None:
        with pytest.raises(ToolError):
            package_commands.program_of(NPM, str(tmp_path))
    else:
        assert package_commands.program_of(NPM, str(tmp_path)) == f"{tmp_path}/node_modules/.bin/{chosen}"


def test_a_tree_has_another_fingerprint_once_anything_in_it_changed(tmp_path: Path) -> None:
    def made() -> str:
        return directories.fingerprint(str(tmp_path))

    (tmp_path / "file").write_text("a")
    (tmp_path / "link").symlink_to("file")
    seen = [made(), made()]
    assert seen[0] == seen[1]
    (tmp_path / "file").chmod(0o755)
    seen.append(made())
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("other")
    seen.append(made())
    os.utime(tmp_path / "file", ns=(1, 1))
    seen.append(made())
    (tmp_path / "more").mkdir()
    seen.append(made())
    assert len({*seen}) == len(seen) - 1
