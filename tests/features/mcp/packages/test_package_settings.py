"""Settings of package managers when an MCP server is fetched: the user's count, a workspace's do not.

The registry speaks TLS with a certificate of a private authority. npm, uv and pip are the real ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.cli.errors import EXIT_CODES
from callgate.core.errors import ToolErrorClass
from tests.features.mcp.packages.authorities import HOST, Authority, proxying
from tests.features.mcp.packages.registries import TOKEN, Registry, serving
from tests.features.mcp.packages.worlds import World, program_path
from tests.kernel.cli.running import AtTerminal, Ran
from tests.needs import needs

UNAVAILABLE = EXIT_CODES[ToolErrorClass.HOST_UNAVAILABLE]
NPX = ("npx", "-y", "greedy-server")
UVX = ("uvx", "greedy-server")
PIPX = ("pipx", "run", "greedy-server")
PASSWORD = "password-of-the-proxy"  # noqa: S105 of nobody


@pytest.fixture
def authority(world: World) -> Authority:
    """Its file is in the home, of which no sandbox shows anything by itself."""
    return Authority(world.home / "certificates")


@pytest.fixture
def registry(world: World, authority: Authority) -> Iterator[Registry]:
    with serving(world.workspace, authority) as registry:
        yield registry


def add(world: World, *command: str, **env: str) -> Ran:
    return world.run("mcp", "add", "greedy", "--effect", "read", "--yes", "--", *command, **env)


def npmrc(world: World, registry: Registry, *lines: str) -> None:
    (world.home / ".npmrc").write_text("\n".join((f"registry={registry.url}/", *lines, "")))


def ensure_secret(world: World, ran: Ran, secret: str) -> None:
    """Neither the output nor a file of callgate holds a secret."""
    assert secret not in ran.out + ran.err
    for path in world.callgate_home.rglob("*"):
        if path.is_file() and "install-" not in str(path):
            assert secret.encode() not in path.read_bytes(), path


# --- npm ------------------------------------------------------------------------------------------


@needs("npm", "node")
def test_the_users_npmrc_counts_behind_a_link(world: World, registry: Registry, authority: Authority) -> None:
    """As a file it counts in most of the following tests."""
    npmrc(world, registry, f"cafile={authority.file}")
    (world.home / "dotfiles").mkdir()
    (world.home / ".npmrc").rename(world.home / "dotfiles/npmrc")
    (world.home / ".npmrc").symlink_to("dotfiles/npmrc")
    ran = add(world, *NPX)
    assert ran.code == 0, ran


@needs("npm", "node")
@pytest.mark.parametrize("name", ["NPM_CONFIG_CAFILE", "NODE_EXTRA_CA_CERTS"])
def test_a_ca_file_that_only_a_variable_names_counts(
    world: World, registry: Registry, authority: Authority, name: str
) -> None:
    npmrc(world, registry)
    machine = world.home / "npmrc-of-the-machine"  # a `cafile` there would replace other authorities
    machine.write_text("")
    ran = add(world, *NPX, **{name: str(authority.file), "NPM_CONFIG_GLOBALCONFIG": str(machine)})
    assert ran.code == 0, ran


@needs("npm", "node")
def test_the_npmrc_of_the_machine_counts(world: World, registry: Registry, authority: Authority) -> None:
    prefix = world.home / "node"
    (prefix / "etc").mkdir(parents=True)
    (prefix / "etc/npmrc").write_text(f"cafile={authority.file}\nregistry={registry.url}/\n")
    (world.home / ".npmrc").write_text("prefix=~/node\n")
    ran = add(world, *NPX)
    assert ran.code == 0, ran


@needs("npm", "node")
def test_a_registry_of_a_scope_and_its_token_count(world: World, registry: Registry, authority: Authority) -> None:
    registry.needs_token = True
    registry.scope = "@team"
    lines = (
        f"@team:registry={registry.url}/",
        f"//127.0.0.1:{registry.port}/:_authToken={TOKEN}",
        f"cafile={authority.file}",
    )
    (world.home / ".npmrc").write_text("\n".join(lines))
    ran = add(world, "npx", "-y", "@team/greedy-server", NPM_TOKEN="")
    assert ran.code == 0, ran
    assert f"Bearer {TOKEN}" in registry.tokens
    ensure_secret(world, ran, TOKEN)
    assert world.succeeds() == ["read workspace", "write cache"]


@needs("npm", "node")
@pytest.mark.parametrize("source", ["npmrc", "variable"])
def test_a_proxy_that_is_required_is_used_and_its_password_is_not_shown(
    world: World, registry: Registry, authority: Authority, source: str
) -> None:
    registry.host = HOST
    with proxying(f"user:{PASSWORD}") as proxy:
        address = f"http://user:{PASSWORD}@127.0.0.1:{proxy.port}"
        lines = [f"cafile={authority.file}"]
        env = {"HTTPS_PROXY": address} if source == "variable" else {}
        npmrc(world, registry, *lines, *([f"https-proxy={address}"] if source == "npmrc" else []))
        ran = add(world, *NPX, **env)
        assert ran.code == 0, ran
        assert proxy.connected and set(proxy.connected) == {f"{HOST}:{registry.port}"}
    ensure_secret(world, ran, PASSWORD)


@needs("npm", "node")
def test_settings_of_a_workspace_do_not_count(
    world: World, registry: Registry, authority: Authority, tmp_path: Path
) -> None:
    """Neither its files, nor variables that lead into it."""
    with serving(world.workspace) as hostile:
        npmrc(world, registry, f"cafile={authority.file}")
        hostile_text = f"registry={hostile.url}/\nstrict-ssl=false\nignore-scripts=true\n"
        (world.workspace / ".npmrc").write_text(hostile_text)
        (world.workspace / "package.json").write_text(
            '{"name": "x", "config": {"registry": "' + hostile.url + '"}, "workspaces": ["*"]}'
        )
        env = {
            "NPM_CONFIG_USERCONFIG": str(world.workspace / ".npmrc"),
            "npm_config_globalconfig": "./.npmrc",
        }
        ran = add(world, *NPX, **env)
        assert ran.code == 0, ran
        assert hostile.tokens == []
        assert registry.tokens != []
    assert "NPM_CONFIG_USERCONFIG" in ran.err and "ignored" in ran.err


@needs("npm", "node")
def test_a_home_that_is_the_workspace_has_its_settings(world: World, registry: Registry, authority: Authority) -> None:
    npmrc(world, registry, f"cafile={authority.file}")
    world.workspace = world.home
    ran = add(world, *NPX)
    assert ran.code == 0, ran
    assert world.succeeds() == ["read workspace", "read ~/diary", "write cache"]


# --- uv and pip -------------------------------------------------------------------------------------


@needs("uv")
@pytest.mark.parametrize("source", ["user", "variable", "proxy"])
def test_uv_has_the_index_the_proxy_and_the_authority_of_the_user(
    world: World, registry: Registry, authority: Authority, source: str
) -> None:
    (world.workspace / "uv.toml").write_text('index-url = "http://127.0.0.1:1/simple/"\n')
    config = world.home / ".config/uv/uv.toml"
    config.parent.mkdir(parents=True)
    env = {"SSL_CERT_FILE": str(authority.file)}
    with proxying(f"user:{PASSWORD}") as proxy:
        if source == "proxy":
            registry.host = HOST
            env["HTTPS_PROXY"] = f"http://user:{PASSWORD}@127.0.0.1:{proxy.port}"
        if source == "variable":
            env["UV_INDEX_URL"] = f"{registry.url}/simple/"
        else:
            config.write_text(f'index-url = "{registry.url}/simple/"\n')
        ran = add(world, *UVX, **env)
        assert ran.code == 0, ran
        assert bool(proxy.connected) == (source == "proxy")
    ensure_secret(world, ran, PASSWORD)


def test_pip_has_the_index_and_the_authority_of_the_users_configuration(
    world: World, registry: Registry, authority: Authority
) -> None:
    (world.workspace / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:1/simple/\n")
    (world.home / ".config/pip/pip.conf").write_text(
        f"[global]\nindex-url = {registry.url}/simple/\ncert = {authority.file}\n"
    )
    ran = add(world, *PIPX)
    assert ran.code == 0, ran


# --- failures -------------------------------------------------------------------------------------


@needs("npm", "node")
def test_an_unknown_authority_is_named_at_the_first_attempt_and_a_second_add_works(
    world: World, registry: Registry, authority: Authority
) -> None:
    npmrc(world, registry)
    settings = world.callgate_home / "settings.toml"
    refused = add(world, *NPX)
    assert refused.code == UNAVAILABLE, refused
    assert "SELF_SIGNED_CERT_IN_CHAIN" in refused.err and "cafile=" in refused.err
    assert "attempt 2" not in (world.callgate_home / "mcp/greedy.log").read_text()
    assert "network, writable" not in refused.err
    assert not settings.exists() or "greedy" not in settings.read_text()
    assert not (world.callgate_home / "mcp/greedy").exists()
    assert "greedy" not in world.run("tools").err
    npmrc(world, registry, f"cafile={authority.file}")
    added = add(world, *NPX)
    assert added.code == 0, added


@needs("uv")
def test_uv_names_an_unknown_authority(world: World, registry: Registry) -> None:
    ran = add(world, *UVX, UV_INDEX_URL=f"{registry.url}/simple/")
    assert ran.code == UNAVAILABLE, ran
    assert "UnknownIssuer" in ran.err and "SSL_CERT_FILE" in ran.err


def test_pip_names_an_unknown_authority_at_the_first_attempt(world: World, registry: Registry) -> None:
    ran = add(world, *PIPX, PIP_INDEX_URL=f"{registry.url}/simple/")
    assert ran.code == UNAVAILABLE, ran
    assert "CERTIFICATE_VERIFY_FAILED" in ran.err and "PIP_CERT" in ran.err
    assert (world.callgate_home / "mcp/greedy.log").read_text().count("Retrying") == 1


@needs("npm", "node")
@pytest.mark.parametrize(
    ("cause", "reason", "advice"),
    [
        ("login", "401 Unauthorized", "npm login"),
        ("host", "ENOTFOUND", "registry= in ~/.npmrc"),
        ("proxy", "407 Proxy Authentication Required", "https-proxy="),
        ("port", "ECONNREFUSED", "cannot be reached"),
        ("name", "404 Not Found", "Check the name"),
    ],
)
def test_the_reason_of_npm_and_what_to_do_are_named(
    world: World, registry: Registry, authority: Authority, cause: str, reason: str, advice: str
) -> None:
    lines = [f"cafile={authority.file}"]
    registry.needs_token = cause == "login"
    if cause in ("host", "proxy"):
        registry.host = HOST
    with proxying(f"user:{PASSWORD}") as proxy:
        if cause == "proxy":
            lines.append(f"https-proxy=http://user:wrong-password@127.0.0.1:{proxy.port}")
        npmrc(world, registry, *lines)
        if cause == "port":
            (world.home / ".npmrc").write_text("registry=http://127.0.0.1:1/\n")
        ran = add(world, "npx", "-y", "no-such" if cause == "name" else "greedy-server")
    assert ran.code == UNAVAILABLE, ran
    assert reason in ran.err and advice in ran.err, ran.err
    ensure_secret(world, ran, "wrong-password")


def test_a_package_manager_that_is_missing_is_named(world: World) -> None:
    ran = add(world, "uvx", "greedy-server", PATH=os.defpath)
    assert (ran.code, "uv is not installed, which is needed for its packages" in ran.err) == (UNAVAILABLE, True), ran


@needs("npm", "node")
def test_ctrl_c_ends_a_fetch_and_leaves_nothing(world: World, registry: Registry, authority: Authority) -> None:
    registry.held = threading.Event()
    npmrc(world, registry, f"cafile={authority.file}")
    env = {"HOME": str(world.home), "CALLGATE_HOME": str(world.callgate_home), "PATH": program_path()}
    words = ("mcp", "add", "greedy", "--yes", "--", *NPX)
    running = AtTerminal(*words, cwd=world.workspace, env=env, streams_too=True)
    running.terminal.read_until(lambda text: "no response yet" in text)
    running.terminal.press("\x03")
    assert running.end().code == 130
    assert "greedy was not added" in running.terminal.text
    assert "Traceback" not in running.terminal.text
    assert not (world.callgate_home / "mcp/greedy").exists()
    assert not (world.callgate_home / "settings.toml").exists()
