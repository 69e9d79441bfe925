"""What commands see of a home and of the system: a list of what is shown, on every backend."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from callgate.sandbox import profiles, sight
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import choose
from callgate.sandbox.profiles import SandboxPaths
from tests.kernel.sandbox.test_escapes import USERS, needed
from tests.kernel.sandbox.worlds import PYTHON, World, as_user, run
from tests.needs import needs

pytestmark = needs("linux", "bash", PYTHON)

JAILS = {
    "landlock, read": ("read", {"landlock", "seccomp"}),
    "namespaces, read": ("read", {"namespaces", "seccomp"}),
    "bubblewrap, read": ("read", {"bubblewrap", "seccomp"}),
    "namespaces, workspace": ("workspace", {"namespaces", "seccomp"}),
    "bubblewrap, workspace": ("workspace", {"bubblewrap", "seccomp"}),
}

SECRETS = """
    .ssh/id .bash_history .a_shell_nobody_knows_history .cache/huggingface/token .fly/config.yml
    .local/share/com.vercel.cli/auth.json .s3cfg snap/firefox/common/.mozilla/cookies
    .var/app/org.chromium/config/Cookies .config/a-tool-of-tomorrow/token notes Documents/taxes
    .cargo/credentials.toml .m2/settings.xml .npmrc .git-credentials .config/git/credentials
    .local/share/keyrings/login .callgate/token
""".split()
TOOLS = """
    .pyenv/version .nvm/nvm.sh .cargo/bin/cargo .cargo/registry/x .rustup/settings.toml go/pkg/x
    .local/bin/tool .local/share/uv/x .m2/repository/x .gitconfig .config/git/ignore
""".split()


@pytest.fixture(params=USERS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The workspace lies in the home, as most do."""
    world = World(request.param)
    for name in (*SECRETS, *TOOLS, "project/file", "other/file"):
        path = world.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    (world.home / "dotfiles").mkdir()
    (world.home / "dotfiles" / "attributes").write_text("linked\n")
    (world.home / ".gitattributes").symlink_to("dotfiles/attributes")
    world.workspace = world.home / "project"
    if os.getuid() == 0:
        for path in (world.home, *world.home.rglob("*")):
            os.chown(path, world.user, world.user, follow_symlinks=False)
    yield world
    world.remove()


def places(world: World, **more: object) -> SandboxPaths:
    given = SandboxPaths(
        workspace=str(world.workspace),
        home=str(world.home),
        callgate_home=str(world.callgate_home),
        tools=sight.shown(str(world.home), {}),
    )
    return msgspec.structs.replace(given, **more)


def output(world: World, jail: str, script: str, given: SandboxPaths) -> str:
    profile, names = JAILS[jail]
    chosen = needed(names)
    bwrap = next((getattr(each, "path", None) for each in chosen if hasattr(each, "path")), None)
    plan = choose(getattr(profiles, profile)(given), chosen)

    def work() -> str:
        argv = ("/bin/bash", "-c", script)
        _, out, _ = asyncio.run(run(plan, argv, str(world.workspace), bwrap=bwrap, HOME=str(world.home)))
        return out

    found: str = as_user(world.user, work)
    return found


@pytest.mark.parametrize("jail", JAILS)
def test_nothing_of_a_home_is_read_but_tool_chains_and_the_workspace(world: World, jail: str) -> None:
    script = f"cd ~; cat {' '.join(SECRETS)} other/file; cat {' '.join(TOOLS)} project/file"
    expected = "".join(f"content of {name}\n" for name in (*TOOLS, "project/file"))
    assert output(world, jail, script, places(world)) == expected


@pytest.mark.parametrize("jail", JAILS)
def test_a_file_that_is_a_link_is_shown_as_one(world: World, jail: str) -> None:
    assert output(world, jail, "cat ~/.gitattributes", places(world)) == "linked\n"


@pytest.mark.parametrize("jail", [name for name in JAILS if "landlock" not in name])
def test_the_rest_of_a_home_cannot_be_listed_nor_written(world: World, jail: str) -> None:
    script = "ls -A ~; ls -A ~/.cargo; touch ~/x ~/.cargo/x ~/.pyenv/x || echo no"
    assert output(world, jail, script, places(world)).split() == [
        ".cargo",
        ".config",
        ".gitattributes",
        ".gitconfig",
        ".local",
        ".m2",
        ".nvm",
        ".pyenv",
        ".rustup",
        "dotfiles",
        "go",
        "project",
        "bin",
        "registry",
        "no",
    ]
    assert not (world.home / "x").exists()


@pytest.mark.parametrize("jail", JAILS)
def test_what_the_settings_open_is_shown_and_the_secrets_in_it_are_not(world: World, jail: str) -> None:
    script = "cd ~; cat notes .config/a-tool-of-tomorrow/token .ssh/id .s3cfg .callgate/token"
    shown = places(world, read_roots=(str(world.home),), shown=(str(world.home),))
    expected = "content of notes\ncontent of .config/a-tool-of-tomorrow/token\n"
    assert output(world, jail, script, shown) == expected
    key = str(world.home / ".ssh" / "id")
    one = places(world, read_roots=(key,), shown=(key,))
    assert output(world, jail, script, one) == "content of .ssh/id\n"


@pytest.mark.parametrize("jail", JAILS)
def test_a_link_that_a_command_could_have_made_shows_nothing(world: World, jail: str) -> None:
    cache = world.home / ".cache"
    (cache / "pip").symlink_to(world.home / ".ssh")
    given = places(world, write_roots=(str(cache),), tools=sight.shown(str(world.home), {}))
    assert output(world, jail, "cat ~/.cache/pip/id ~/.ssh/id", given) == ""


@pytest.mark.parametrize("jail", JAILS)
def test_what_the_system_keeps_from_other_users_it_keeps_from_commands(world: World, jail: str) -> None:
    directories, files = sight.private_paths()
    given = places(world, private=(*sight.DATA, *directories), hidden=files)
    script = "cat /etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow-; ls -A /root /home /mnt"
    if "landlock" not in jail:
        script += "; ls -A /etc/ssl/private"
    found = output(world, jail, script, given)
    assert not [line for line in found.splitlines() if line and not line.endswith(":")]


@pytest.mark.parametrize("jail", [name for name in JAILS if "read" in name])
def test_no_command_line_of_another_process_is_read(world: World, jail: str) -> None:
    script = f"cat /proc/{os.getpid()}/cmdline /proc/{os.getpid()}/status | head -c 10"
    assert output(world, jail, script, places(world)) == ""


@pytest.mark.parametrize("jail", JAILS)
def test_what_is_hidden_where_nothing_is_shown_is_no_trouble(world: World, jail: str) -> None:
    """A rule or a setting may name it all the same."""
    profile, names = JAILS[jail]
    hidden = (str(world.home / "notes"), str(world.home / ".pyenv" / "version"))
    made = getattr(profiles, profile)(places(world))
    plan = choose(msgspec.structs.replace(made, hidden=(*made.hidden, *hidden)), needed(names))
    bwrap = next((getattr(each, "path", None) for each in needed(names) if hasattr(each, "path")), None)
    argv = ("/bin/bash", "-c", f"cat {' '.join(hidden)} file")

    def work() -> str:
        return asyncio.run(run(plan, argv, str(world.workspace), bwrap=bwrap))[1]

    assert as_user(world.user, work) == "content of project/file\n"


def test_private_places_are_found_by_their_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("")
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open" / "key").write_text("")
    (tmp_path / "open" / "plain").write_text("")
    for path in (tmp_path / "secret", tmp_path / "open" / "key"):
        path.chmod(0o600)
    (tmp_path / "open" / "plain").chmod(0o644)
    monkeypatch.setattr(sight, "_PRIVATE_IN", {str(tmp_path): 2})
    sight._private_paths.cache_clear()
    directories, files = sight.private_paths()
    sight._private_paths.cache_clear()
    assert directories == (str(tmp_path / "closed"),)
    assert sorted(files) == [str(tmp_path / "open" / "key"), str(tmp_path / "secret")]


def test_a_home_that_is_the_workspace_is_seen_but_for_its_secrets(world: World) -> None:
    jail = profiles.workspace(places(world, workspace=str(world.home)))
    assert str(world.home) not in jail.opaque
    assert str(world.home / ".ssh") in jail.hidden


def test_what_the_environment_names_is_shown_but_never_a_whole_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("sdk/java/bin", "tools/bin", "cargo/bin", "cargo/registry"):
        (home / name).mkdir(parents=True)
    (home / "cargo" / "credentials.toml").write_text("")
    environ = {
        "JAVA_HOME": str(home / "sdk" / "java"),
        "PATH": f"{home}/tools/bin:relative:{home}:{tmp_path}:/",
        "CARGO_HOME": str(home / "cargo"),
        "NVM_DIR": str(home),
    }
    names = ("cargo/bin", "cargo/registry", "sdk", "tools/bin")
    assert sight.shown(str(home), environ) == tuple(str(home / name) for name in names)


def test_shims_on_the_path_are_shown_with_the_programs_that_they_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("env/shims", "env/versions", "mise/shims", "mise/installs", "loose/shims", "loose/x"):
        (home / name).mkdir(parents=True)
    path = os.pathsep.join(f"{home}/{name}/shims" for name in ("env", "mise", "loose"))
    names = ("env", "loose/shims", "mise")
    assert sight.shown(str(home), {"PATH": path}) == tuple(str(home / name) for name in names)


def test_a_program_is_shown_with_the_package_that_it_belongs_to(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    for name in ("mcp/dist", "mcp/node_modules", "venv/bin", "data"):
        (home / name).mkdir(parents=True)
    work.mkdir()
    (home / "mcp" / "package.json").write_text("{}")
    (home / "mcp" / "dist" / "index.js").write_text("")
    (home / "venv" / "pyvenv.cfg").write_text("")
    (home / "loose.py").write_text("")
    program = home / "venv" / "bin" / "python"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    argv = (str(program), str(home / "mcp/dist/index.js"), f"--root={home}/data", str(home / "loose.py"))
    names = ("data", "loose.py", "mcp", "venv")
    expected = sorted([*(str(home / name) for name in names), str(work)])
    assert list(sight.of_program(argv, str(work), {}, str(home))) == expected


def test_what_a_command_named_and_could_not_see_is_found(tmp_path: Path) -> None:
    home = Path(os.path.realpath(tmp_path)) / "home"
    for name in ("notes", ".pyenv", "ws"):
        (home / name).mkdir(parents=True)
    jail = Jail(readable=("/", str(home / ".pyenv")), writable=(str(home / "ws"),), opaque=(str(home),))
    text = f"cat ~/notes '{home}/.pyenv/x' $HOME/nothing {home}/ws/x ~ /etc/passwd: no such file"
    assert sight.unseen(jail, str(home), text) == (str(home / "notes"),)


def test_the_package_of_a_relative_path_is_found() -> None:
    assert sight._package("no/such/program") == "no/such"
