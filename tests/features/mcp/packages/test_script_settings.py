"""The settings of npm while scripts of packages run: those that are no login."""

from __future__ import annotations

from pathlib import Path

from callgate.features.mcp.client.manager_settings import manager_settings

PASSWORD = "password-of-nobody"  # noqa: S105


def test_scripts_of_packages_see_no_login_of_a_registry(tmp_path: Path) -> None:
    home, downloads = tmp_path / "home/user", tmp_path / "downloads"
    home.mkdir(parents=True)
    downloads.mkdir()
    for name in ("ca.pem", "client.pem", "client.key"):
        (home / name).write_text("x")
    public = [
        "cafile=~/ca.pem",
        "https-proxy=http://user:of-the-proxy@proxy.example:8080",
        "ignore-scripts=true",
        "@team:registry=${TEAM}",
    ]
    private = [
        f"registry=https://user:{PASSWORD}@one.example/",
        "//two.example/:_authToken=${SECRET}",
        "//two.example/:_password=cGFzc3dvcmQ=",
        "//two.example/:username=user",
        f"//two.example/:certfile={home}/client.pem",
        f"//two.example/:keyfile={home}/client.key",
    ]
    (home / ".npmrc").write_text("\n".join(public + private))
    environ = {
        "HOME": str(home),
        "PATH": "/usr/bin",
        "SECRET": PASSWORD,
        "TEAM": "https://team.example/",
        "NPM_CONFIG_REGISTRY": f"https://user:{PASSWORD}@one.example/",
        "npm_config__auth": "of-the-variable",
        "NPM_CONFIG_USERCONFIG": str(home / ".npmrc"),
        "NPM_CONFIG_GLOBALCONFIG": str(home / "none"),
        "NODE_AUTH_TOKEN": "of-the-variable",
        "HTTPS_PROXY": "http://user:of-the-proxy@proxy.example:8080",
    }
    settings = manager_settings("npm", environ, str(home), str(downloads), [])
    assert str(home / "client.key") in settings.step.files and "SECRET" in settings.step.env
    step = settings.script_step()
    assert step.files == (str(home / "ca.pem"),)
    assert Path(step.env["npm_config_userconfig"]).read_text().splitlines() == public
    given = {name for name in environ if name in step.env}
    assert given == {"HOME", "PATH", "TEAM", "HTTPS_PROXY"}
    assert not any(PASSWORD in value or "of-the-variable" in value for value in step.env.values())


def test_registries_and_proxies_on_this_machine_are_services_that_a_fetch_reaches(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".npmrc").write_text(
        "registry=http://user:word@localhost:4873/\nhttps-proxy=127.0.0.1:3128\n//127.0.0.9:9/:_authToken=x\n"
        "a:registry=http://127.0.0.1.example:81/\nb:registry=http://127.0.0.999:82/\nc:registry=https://[::1]/npm\n"
        "d:registry=https://x@localhost.example:83/\n"
    )
    environ = {"HOME": str(home), "PATH": "/usr/bin", "HTTP_PROXY": "http://localhost", "OTHER": "http://localhost:5"}
    settings = manager_settings("npm", environ, str(home), str(tmp_path), [])
    found = {(each.name, *each.ports) for each in settings.services}
    assert found == {("localhost", 4873), ("127.0.0.1", 3128), ("::1", 443), ("localhost", 80)}
