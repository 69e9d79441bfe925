"""Which directory a peer may work in: one that is served, one inside it, or one that the user trusts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callgate import Mode, ToolPermissionDenied
from callgate.config.home import Home
from callgate.config.trust import distrust, trust
from callgate.instance.startup import CannotServe, ServedDirectories, peer_directory, served_roots, trusted_roots
from callgate.instance.wiring.runtime import Wired


def nobody_trusts(directory: str) -> bool:
    return False


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "ws"
    (made / "inside").mkdir(parents=True)
    (tmp_path / "ws-other").mkdir()
    (tmp_path / "outside").mkdir()
    return made


def refused(cwd: str | None, root: Path, trusts: object = nobody_trusts) -> str | None:
    """Why, if it is."""
    try:
        peer_directory(cwd, [str(root)], trusts)  # type: ignore[arg-type]
    except ToolPermissionDenied as error:
        return error.reason
    return None


def test_a_peer_that_names_none_works_in_the_first(root: Path) -> None:
    assert peer_directory(None, [str(root), "/"], nobody_trusts) == str(root)


def test_a_peer_may_work_in_what_is_served_and_inside_it(root: Path) -> None:
    assert peer_directory(str(root), [str(root)], nobody_trusts) == str(root)
    assert peer_directory(str(root / "inside"), [str(root)], nobody_trusts) == str(root / "inside")


@pytest.mark.parametrize("where", ["..", "../outside", "../ws-other", "inside/../../outside"])
def test_a_directory_that_is_not_served_is_refused(root: Path, where: str) -> None:
    assert refused(f"{root}/{where}", root) == "workspace_not_served"


def test_a_link_counts_as_where_it_leads(root: Path, tmp_path: Path) -> None:
    (root / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "way-in").symlink_to(root / "inside")
    assert refused(str(root / "link"), root) == "workspace_not_served"
    assert peer_directory(str(tmp_path / "way-in"), [str(root)], nobody_trusts) == str(root / "inside")


@pytest.mark.parametrize(("cwd", "reason"), [("", "cwd_relative"), ("inside", "cwd_relative"), ("/\0", "cwd_invalid")])
def test_what_is_no_absolute_path_is_refused(root: Path, cwd: str, reason: str) -> None:
    assert refused(cwd, root) == reason


def test_a_file_and_a_directory_that_is_gone_are_refused(root: Path) -> None:
    (root / "file").write_text("")
    assert refused(str(root / "file"), root) == "workspace_gone"
    assert refused(str(root / "gone"), root) == "workspace_gone"


def test_a_loop_of_links_is_refused(root: Path) -> None:
    (root / "loop").symlink_to(root / "loop")
    assert refused(str(root / "loop"), root) == "workspace_gone"


def test_a_trusted_directory_is_served_too(root: Path, tmp_path: Path) -> None:
    outside = str(tmp_path / "outside")
    assert peer_directory(outside, [str(root)], outside.__eq__) == outside
    assert refused(str(tmp_path / "ws-other"), root, outside.__eq__) == "workspace_not_served"


async def test_a_session_has_the_mode_of_the_instance_and_trust_is_read_anew(root: Path, tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    home.make()
    wired = Wired(home)
    try:
        directories = ServedDirectories(wired, [str(root)], Mode.READ)
        session = directories.open_session(str(root / "inside"), "s1")
        assert (session.id, session.workspace, session.mode) == ("s1", str(root / "inside"), Mode.READ)
        with pytest.raises(ToolPermissionDenied):
            directories.open_session(str(tmp_path / "outside"), "s2")
        trust(home, str(tmp_path / "outside"))
        assert directories.open_session(str(tmp_path / "outside"), "s2").workspace == str(tmp_path / "outside")
        inner = tmp_path / "outside/inner"
        inner.mkdir()
        assert directories.open_session(str(inner), "s3").workspace == str(inner)
    finally:
        await wired.close()


async def test_an_instance_for_trusted_directories_serves_no_other_and_follows_trust(
    root: Path, tmp_path: Path
) -> None:
    home = Home(str(tmp_path / "home"))
    home.make()
    wired = Wired(home)
    try:
        (empty,) = trusted_roots(home)
        directories = ServedDirectories(wired, [empty], Mode.ASK, only_trusted=True)
        assert directories.open_session(None, "s0").workspace == empty
        trust(home, str(root))
        assert trusted_roots(home) == [str(root)]
        directories = ServedDirectories(wired, trusted_roots(home), Mode.ASK, only_trusted=True)
        assert directories.open_session(None, "s1").workspace == str(root)
        with pytest.raises(ToolPermissionDenied):
            directories.open_session(str(tmp_path / "outside"), "s2")
        distrust(home, str(root))
        for cwd in (None, str(root)):
            with pytest.raises(ToolPermissionDenied):
                directories.open_session(cwd, "s3")
    finally:
        await wired.close()


async def test_a_directory_whose_settings_are_wrong_is_refused(root: Path, tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home"))
    home.make()
    (root / ".callgate").mkdir()
    (root / ".callgate" / "settings.toml").write_text("nonsense = = 1\n")
    trust(home, str(root))
    wired = Wired(home)
    try:
        with pytest.raises(ToolPermissionDenied) as refusal:
            ServedDirectories(wired, [str(root)], Mode.ASK).open_session(None, "s1")
        assert refusal.value.reason == "settings_invalid"
    finally:
        await wired.close()


def test_roots_are_real_directories(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(root)
    assert served_roots([str(tmp_path / "link"), "."]) == [str(root), str(root)]
    assert served_roots([]) == [os.getcwd()]
    assert served_roots(str(root)) == served_roots(root) == [str(root)]  # and not "/", "t", "m", "p"
    with pytest.raises(CannotServe, match="gone is not a directory"):
        served_roots([str(root), str(root / "gone")])
