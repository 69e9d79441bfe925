"""Start of the instance that answers hooks: in the background, or at login by a systemd service.

    absent ──install──> unit file ──reload, enable──> starts at login ──remove──> absent

Each step is idempotent, so a second run completes an interrupted one. callgate never changes a unit
file that it did not write.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from callgate.cli.errors import CliError
from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass
from callgate.core.local.disk import write_private
from callgate.socket.instances import lasting

_MARK = "# Made by callgate protect; callgate protect --undo removes it."
_LIMIT_S = 90.0
"""`enable --now` waits until the instance is ready."""
_UNIT = """\
{mark}
[Unit]
Description=callgate, the permission layer for the tool calls of AI agents
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
Environment={environment}
ExecStart={command}
Restart=on-failure
RestartSec=2
TimeoutStopSec=90
KillMode=mixed
UMask=0077

[Install]
WantedBy=default.target
"""


def unit_name(home: str) -> str:
    """Return the unit's name for a home: `callgate.service` for the default home."""
    if os.path.realpath(home) == os.path.realpath(os.path.expanduser("~/.callgate")):
        return "callgate.service"
    return f"callgate-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}.service"


def unit_file(home: str) -> str:
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(config, "systemd", "user", unit_name(home))


def unit_text(home: str, environ: Mapping[str, str] = os.environ) -> str:
    # -P: do not import modules from the working directory
    command = [sys.executable, "-P", "-m", "callgate", "serve", "--foreground", "--trusted"]
    variables = [f"CALLGATE_HOME={home}", f"PATH={_path(environ.get('PATH', os.defpath))}"]
    return _UNIT.format(
        mark=_MARK,
        environment=" ".join(_quoted(each) for each in variables),
        command=" ".join(_quoted(each).replace("$", "$$") for each in command),
    )


def _path(path: str) -> str:
    """Return the absolute directories of PATH."""
    return os.pathsep.join(each for each in path.split(os.pathsep) if os.path.isabs(each))


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    escaped = escaped.replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def missing() -> str | None:
    """Return why user services are not available, or None."""
    if shutil.which("systemctl") is None:
        return "systemd is not installed"
    if _systemctl("show-environment").returncode != 0:
        return "no systemd user manager runs for this user"
    return None


def is_installed(home: str) -> bool:
    """Return whether callgate has written the unit file."""
    try:
        with open(unit_file(home), encoding="utf-8") as file:
            return file.readline().rstrip("\n") == _MARK
    except (OSError, UnicodeDecodeError):
        return False


def is_enabled(home: str) -> bool:
    """Return whether a unit of this name starts at login. callgate may not have written it."""
    return _systemctl("is-enabled", unit_name(home)).returncode == 0


def install(home: str, *, start: bool) -> None:
    """Write and enable the unit; `start`: also start the instance now. Raises `CliError`."""
    path = unit_file(home)
    if os.path.lexists(path) and not is_installed(home):
        raise _service_failed(
            f"{path} exists and was not written by callgate, so it was not changed",
            f"Enable it with systemctl --user enable {unit_name(home)}.",
        )
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_private(path, unit_text(home))
    except OSError as error:
        raise _service_failed(f"{path} cannot be written: {error.strerror or error}") from error
    _ensure("daemon-reload")
    _ensure("enable", *(["--now"] if start else []), unit_name(home))


def start(home: str) -> None:
    """Start the instance of an enabled unit. Raises `CliError`."""
    _ensure("start", unit_name(home))


def remove(home: str) -> bool:
    """Stop and remove the unit. Return False if callgate has not installed it.

    Raises `CliError`.
    """
    if not is_installed(home):
        return False
    if missing() is None:
        _ensure("disable", "--now", unit_name(home))
    try:
        os.unlink(unit_file(home))
    except OSError as error:
        raise _service_failed(f"{unit_file(home)} cannot be removed: {error.strerror}") from error
    if missing() is None:
        _ensure("daemon-reload")
    return True


def _ensure(*words: str) -> None:
    done = _systemctl(*words)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        raise _service_failed(f"systemctl --user {' '.join(words)} failed: {reason}")


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--user", *words]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _service_failed(message: str, hint: str | None = None) -> CliError:
    return CliError(
        message, hint=hint, error_class=ToolErrorClass.EXECUTION_ERROR, reason="service_failed"
    )


SERVE = "callgate serve --detach --trusted"


class Started(NamedTuple):
    pid: int
    detached: bool
    """Whether this run started the instance in the background."""
    service: str | None
    """The unit that starts the instance at login, or None."""
    note: str | None = None
    """Why the instance does not start at login."""


def ensure_instance(home: Home, wants_service: Callable[[], bool], *, insist: bool) -> Started:
    """Ensure that an instance is running. Raises `CliError`.

    `wants_service` asks the person, if necessary. `insist`: install a service even if an instance
    is running.
    """
    running = bool(lasting(home.path))
    if (reason := missing()) is not None:
        note = f"It does not start after a reboot: {reason}. Add `{SERVE}` to your login script."
        return Started(*_running(home), None, note)
    was_agreed = is_installed(home.path)
    is_agreed = was_agreed or insist or is_enabled(home.path)
    if is_agreed or (not running and wants_service()):
        failure = _start_service(home, running, ours=was_agreed)
        unit = unit_name(home.path) if failure is None else None
        return Started(*_running(home), unit, failure)
    note = "It does not start after a reboot: callgate protect starts it again."
    return Started(*_running(home), None, note)


def _running(home: Home) -> tuple[int, bool]:
    """Return the instance's process id, and whether this call started the instance."""
    detached = not lasting(home.path)
    if detached:
        _detach(home)
    running = lasting(home.path)
    if not running:
        raise _failed("the instance ended immediately after its start")
    return running[0].pid, detached


def _start_service(home: Home, running: bool, *, ours: bool) -> str | None:
    """Install or start the service. Return why this failed, or None."""
    try:
        if not ours and is_enabled(home.path):
            if not running:
                start(home.path)
        else:
            install(home.path, start=not running)
    except CliError as error:
        return f"It does not start after a reboot: {error.message}."
    return None


def _detach(home: Home) -> None:
    """Start an instance in the background, and wait until it is ready. Raises `CliError`."""
    # -P: do not import modules from the working directory
    command = [sys.executable, "-P", "-m", "callgate", "serve", "--detach", "--trusted"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S,
            check=False, stdin=subprocess.DEVNULL, cwd=home.path,
        )  # fmt: skip
        output = done.stderr if done.returncode else None
    except (OSError, subprocess.SubprocessError) as error:
        output = str(error)
    if output is not None:
        lines = output.strip().splitlines() or ["it printed nothing"]
        raise _failed(f"the instance could not be started: {lines[0]}")


def _failed(message: str) -> CliError:
    return CliError(
        message,
        hint=f"For details, run {SERVE}.",
        error_class=ToolErrorClass.EXECUTION_ERROR,
        reason="no_instance",
    )
