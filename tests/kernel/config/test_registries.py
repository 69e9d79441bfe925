"""Registries in the configuration of the user and the machine, and the rules for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.cli.main import main
from callgate.config import registries
from callgate.config.home import Home
from callgate.config.load import read_saved_rules

CARGO = ("index.crates.io", "static.crates.io")
PUBLIC = {"npm": ("registry.npmjs.org",), "pip": ("pypi.org", "files.pythonhosted.org"), "cargo": CARGO}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home; the machine has no configuration."""
    monkeypatch.setattr(registries, "_NPM_FILES", ("/nonexistent/npmrc", "~/.npmrc"))
    monkeypatch.setattr(registries, "_PIP_FILES", ("/nonexistent/pip.conf", "~/.config/pip/pip.conf"))
    monkeypatch.setattr(registries, "_CARGO_FILES", ("/nonexistent/config.toml", "~/.cargo/config.toml"))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_configuration_the_public_registries_count(user: Path) -> None:
    assert registries.registries(str(user), {}) == PUBLIC


def test_configured_registries_take_the_place_of_the_public_ones(user: Path) -> None:
    write(
        user / ".npmrc",
        "; registry=https://comment.example/\nregistry = https://npm.corp.example:8443/repo/\n"
        "@team:registry=https://team.example/\n//npm.corp.example/:_authToken=secret\nnot-registry=https://x.example\n",
    )
    write(
        user / ".config/pip/pip.conf",
        "[global]\nindex-url = https://user:secret@pip.corp.example/simple\n"
        "extra-index-url =\n    https://pypi.org/simple\n    http://10.0.0.5:8080/simple\ntimeout = 60\n",
    )
    assert registries.registries(str(user), {}) == {
        "npm": ("npm.corp.example:8443", "team.example"),
        "pip": ("pip.corp.example", "pypi.org", "10.0.0.5:8080", "files.pythonhosted.org"),
        "cargo": CARGO,
    }


def test_variables_count_and_files_of_the_workspace_do_not(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = user / "workspace"
    write(workspace / ".npmrc", "registry=https://evil.example/\n")
    write(workspace / "pip.conf", "[global]\nindex-url = https://evil.example/\n")
    monkeypatch.chdir(workspace)
    environ = {"PIP_INDEX_URL": "https://pip.example/simple", "npm_config_registry": "https://npm.example/"}
    write(workspace / ".cargo/config.toml", '[registries.evil]\nindex = "sparse+https://evil.example/"\n')
    environ["CARGO_REGISTRIES_TEAM_INDEX"] = "sparse+https://cargo.example/index/"
    environ["CARGO_HOME"] = ".cargo"  # relative to the workspace
    assert registries.registries(str(user), environ) == {
        "npm": ("npm.example",),
        "pip": ("pip.example",),
        "cargo": ("cargo.example", *CARGO),
    }


def test_registries_of_cargo_are_those_of_the_user_and_of_its_home(user: Path) -> None:
    write(user / ".cargo/config.toml", '[registries.team]\nindex = "https://git.corp.example/index"\n')
    environ = {"CARGO_HOME": str(user / "cargo")}
    assert registries.registries(str(user), environ)["cargo"] == ("git.corp.example", *CARGO)
    write(
        user / "cargo/config.toml",
        '[source.crates-io]\nreplace-with = "mirror"\n[source.mirror]\n'
        'registry = "sparse+https://user:secret@mirror.example:8443/"\n[source.local]\ndirectory = "vendor"\n',
    )
    assert registries.registries(str(user), environ)["cargo"] == ("git.corp.example", "mirror.example:8443")


@pytest.mark.parametrize(
    "text", ["[source", "source = 3\nregistries = []", "[registries]\na = 1", "[registries.a]\nindex = 1"]
)
def test_a_configuration_that_cargo_cannot_read_names_no_registry(user: Path, text: str) -> None:
    write(user / ".cargo/config.toml", text + "\n")
    assert registries.registries(str(user), {})["cargo"] == CARGO


@pytest.mark.parametrize("value", ["${REGISTRY}", "file:///srv/packages", "https://", "https://[", "nonsense"])
def test_a_value_without_a_host_is_no_registry(user: Path, value: str) -> None:
    write(user / ".npmrc", f"registry={value}\n")
    assert registries.registries(str(user), {}) == PUBLIC


def test_the_printed_rules_can_be_imported(
    user: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*registries._NPM_VARIABLES, *registries._PIP_VARIABLES, "CARGO_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(user))
    assert main(["policy", "registries"]) == 0
    write(user / "rules.toml", capsys.readouterr().out)
    assert main(["policy", "import", str(user / "rules.toml")]) == 0
    saved = read_saved_rules(Home.from_environment().saved_rules)
    assert [each["arguments"] for each in saved] == [
        {"host": "registry.npmjs.org", "installs": "npm"},
        {"host": "pypi.org", "installs": "pip"},
        {"host": "files.pythonhosted.org", "installs": "pip"},
        *({"host": host, "installs": "cargo"} for host in CARGO),
    ]
