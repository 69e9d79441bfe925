"""What `callgate doctor` looks at: a list of small functions, each with one finding.

To add a check, write a function of a `Patient` that returns a `Finding`, and put it into
`CHECKS`. A check never changes anything, and raises nothing for what it looks at.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from callgate.audit.reading import tail
from callgate.audit.records import line_hash
from callgate.audit.segments import all_segments
from callgate.audit.verify import verify
from callgate.cli.doctor.findings import Finding, Level
from callgate.cli.doctor.python_bugs import PythonBug, bugs_here
from callgate.cli.doctor.sandboxes import limits_here, path_rules_here, profiles_here, promises
from callgate.cli.doctor.stores import store_finding
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import CliError
from callgate.cli.hooks.checks import warnings as hook_warnings
from callgate.cli.platforms import missing_on
from callgate.cli.remote.instance_states import state_of
from callgate.cli.ui.terminal import is_terminal, wants_colour
from callgate.cli.ui.tty import open_tty
from callgate.config.home import Home, workspace_settings
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.stores import configured_store
from callgate.config.trust import is_trusted, trusted
from callgate.core.errors import ToolError
from callgate.dispatch.commands.sandboxes import OFF, Sandbox
from callgate.dispatch.tools.registry import Registry
from callgate.sandbox.machines import look_at_groups_now
from callgate.surfaces.socket.instances import running
from callgate.surfaces.socket.listings import every
from callgate.wiring.registration import register_known
from callgate.wiring.runtime import Wired
from callgate.wiring.surroundings import surroundings
from callgate.workspace.opening import Openat2, best_opener

if TYPE_CHECKING:
    from callgate.sources.hosts.host_tools import HostedTools
    from callgate.sources.hosts.provider import Hosts

_LEAST_PYTHON = (3, 11)
_WHOLE_LOG = 16 * 1024 * 1024
_NEWEST = 1_000
_BACKENDS = (
    ("seatbelt",)
    if sys.platform == "darwin"
    else ("landlock", "seccomp", "namespaces", "bubblewrap")
)


class Patient(NamedTuple):
    home: Home
    workspace: str


Check = Callable[[Patient], Finding]


def _good(text: str) -> Finding:
    return Finding(Level.OK, text)


def check_python(patient: Patient) -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] < _LEAST_PYTHON:
        return Finding(Level.FAILED, f"{version} is too old", "install Python 3.11 or newer")
    return python_finding(version, bugs_here())


def python_finding(version: str, bugs: Sequence[PythonBug]) -> Finding:
    """A release whose bugs break a promise is refused; others are worth knowing."""
    text = "; ".join([version, *(bug.text for bug in bugs)])
    if any(bug.breaks_promise for bug in bugs):
        return Finding(Level.FAILED, text, "use another release of Python")
    return Finding(Level.NOTE, text) if bugs else _good(text)


def check_platform(patient: Patient) -> Finding:
    name = f"{platform.system()} {platform.release()}"
    lacking = missing_on(sys.platform)
    return _good(name) if lacking is None else Finding(Level.FAILED, lacking, "use Linux")


def check_home(patient: Patient) -> Finding:
    path = patient.home.path
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return Finding(Level.NOTE, f"{path} is not there yet", "callgate init")
    except OSError as error:
        return Finding(Level.FAILED, f"{path}: {error.strerror}", f"ls -ld {path}")
    if not stat.S_ISDIR(status.st_mode):
        return Finding(Level.FAILED, f"{path} is not a directory", f"ls -ld {path}")
    if status.st_uid != os.geteuid():
        return Finding(Level.FAILED, f"{path} belongs to another user", f"ls -ld {path}")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return Finding(Level.FAILED, f"{path} is open to others ({mode:04o})", f"chmod 700 {path}")
    return _good(path)


def check_settings(patient: Patient) -> Finding:
    try:
        settings = load_user(patient.home)[0]
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {error.file}")
    path = patient.home.settings
    if settings.durability.files == "fast":
        text = "written files are not synced ([durability]): a power cut may lose or empty them"
        return Finding(Level.NOTE, f"{path}; {text}")
    return _good(path if os.path.exists(path) else f"{path} is not there: all defaults")


def check_tools(patient: Patient) -> Finding:
    here = Namespace(debug=False, workspace=patient.workspace, mode=None)
    try:
        wired, session = open_runtime(here, register=register_known)
    except CliError as error:
        return Finding(Level.FAILED, error.message, error.hint)
    known = every(wired.runtime, session)  # what `callgate tools` lists
    visible = sum(tool["visible"] for tool in known)
    hidden = len(known) - visible
    return _good(f"{visible} visible" + (f", {hidden} not" if hidden else ""))


def check_hosts(patient: Patient) -> Finding:
    try:
        settings, _ = load_user(patient.home)
    except SettingsError:
        return Finding(Level.NOTE, "not known before the settings are right")
    if not settings.hosts:
        return _good("none")
    from callgate.sources.hosts.host_tools import HostedTools  # lazy: most homes have none  # noqa: PLC0415
    from callgate.wiring.hosts import make_hosts  # lazy: most homes have none  # noqa: PLC0415

    around = Sandbox(surroundings(patient.home, settings))
    hosts = make_hosts(patient.home, settings, around, patient.workspace)
    hosted = _hosted(patient) or HostedTools(hosts, Registry())
    found = {
        name: problem for name in hosts.hosts if (problem := _host_problem(hosts, hosted, name))
    }
    problems = [f"{name}: {problem.text}" for name, problem in found.items()]
    text = "; ".join([f"{len(hosts.hosts)} in the settings", *problems])
    for level in (Level.FAILED, Level.NOTE):
        for problem in found.values():
            if problem.level is level:
                return Finding(level, text, problem.fix)
    return _good(text)


def _hosted(patient: Patient) -> HostedTools | None:
    """The tools of hosts that could be registered; None where other tools are in the way."""
    wired = Wired(patient.home, audit=False)
    try:
        register_known(wired, patient.workspace)
    except SettingsError:
        return None
    return wired.hosts


def _host_problem(hosts: Hosts, hosted: HostedTools, name: str) -> Finding | None:
    """What is known without starting it."""
    settings, trouble = hosts.hosts[name].settings, hosts.trouble(name)
    program = settings.command[0]
    path = os.path.join(settings.cwd, program) if os.sep in program else program
    if shutil.which(path, path=settings.env.get("PATH")) is None:
        return Finding(
            Level.FAILED,
            f"{program} is not there or cannot be run",
            f"correct command of [hosts.{name}]",
        )
    doubt = hosts.doubt(name)
    if doubt is not None:
        return Finding(Level.FAILED, str(doubt), f"callgate hosts reload {name}")
    if trouble is not None:
        given_up = "given up: " if trouble.given_up else ""
        return Finding(Level.NOTE, f"{given_up}{trouble.problem}", f"callgate hosts logs {name}")
    if hosts.pinned(name) is None:
        return Finding(Level.NOTE, "never started", f"callgate hosts reload {name}")
    for tool, why in hosted.left_out(name).items():
        return Finding(Level.NOTE, f"tool {tool!r} is not offered: {why}", "callgate hosts list")
    if "-m" in settings.command and not {"-P", "-I"} & {*settings.command}:
        return Finding(
            Level.NOTE,
            "python -m takes modules of the directory it starts in before all others",
            f"put -P before -m in the command of [hosts.{name}]",
        )
    return None


def check_trust(patient: Patient) -> Finding:
    try:
        directories = trusted(patient.home)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"rm {error.file}")
    return _good(f"{len(directories)} trusted directories")


def check_workspace(patient: Patient) -> Finding:
    path = workspace_settings(patient.workspace)
    if not os.path.lexists(path):
        return _good(f"{patient.workspace} has no settings of its own")
    try:
        if not is_trusted(patient.home, patient.workspace):
            return Finding(
                Level.NOTE, f"{path} is not read: the directory is not trusted", "callgate trust ."
            )
        load_workspace(patient.workspace)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {error.file}")
    return _good(f"{path} narrows what you allow")


def check_store(patient: Patient) -> Finding:
    return store_finding(patient.home)


def check_audit(patient: Patient) -> Finding:
    path = patient.home.audit
    if not os.path.exists(path):
        return _good(f"{path} begins with the first call")
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            Level.FAILED,
            f"{path} cannot be written: calls with effects are refused",
            f"chmod 600 {path}",
        )
    if not _is_whole(path):
        return Finding(Level.FAILED, f"{path} was changed", "callgate audit verify")
    return _good(path)


def _is_whole(path: str) -> bool:
    """Of a log too large to wait for, only whether its newest lines follow from each other."""
    if sum(os.path.getsize(segment) for segment in all_segments(path)) <= _WHOLE_LOG:
        return verify(path).ok
    ends: dict[str, tuple[int, str]] = {}
    for line, raw in tail(path, _NEWEST):
        found = (line.n - 1, line.prev)
        if ends.setdefault(line.chain, found) != found:
            return False
        ends[line.chain] = (line.n, line_hash(raw))
    return True


def check_wall(patient: Patient) -> Finding:
    if isinstance(best_opener(), Openat2):
        return _good("openat2: the kernel keeps paths inside the workspace")
    return Finding(Level.NOTE, "no openat2: paths are walked name by name, which is slower")


@lru_cache(maxsize=1)  # trying the machine out takes a moment
def sandbox_of(patient: Patient) -> Sandbox | None:
    """The sandbox as the settings make it; None where they cannot be read."""
    try:
        settings, _ = load_user(patient.home)
    except SettingsError:
        return None
    return Sandbox(surroundings(patient.home, settings))


def check_sandbox(patient: Patient) -> Finding:
    sandbox = sandbox_of(patient)
    if sandbox is None:
        return Finding(Level.NOTE, "not known before the settings are right")
    if sandbox.surroundings.profile is None:
        return Finding(
            Level.NOTE,
            "off: commands run with nothing around them",
            f'remove sandbox = "off" from {patient.home.settings}',
        )
    profiles = profiles_here(sandbox, patient.workspace)
    try:
        rules = path_rules_here(sandbox, patient.workspace)
    except ToolError as error:
        fix = "commands are refused here; see docs/decide/policy.md"
        return Finding(Level.FAILED, str(error), fix)
    text = "; ".join(
        [*map(str, profiles), *rules, *([_cgroups()] if sys.platform == "linux" else [])]
    )
    missing = [each for each in profiles if each.missing]
    if not missing:
        return _good(text)
    fix = "commands that need it are refused; see docs/decide/sandbox.md"
    level = Level.FAILED if any(each.profile == "workspace" for each in missing) else Level.NOTE
    return Finding(level, text, fix)


def check_backend(name: str, patient: Patient) -> Finding:
    sandbox = sandbox_of(patient) or Sandbox(OFF)
    backend = next(each for each in sandbox.backends if each.name == name)
    if backend.problem is not None:
        return Finding(Level.NOTE, f"not here: {backend.problem}")
    return _good(", ".join(promises(backend)))


def check_limits(patient: Patient) -> Finding:
    sandbox = sandbox_of(patient)
    if sandbox is None or sandbox.surroundings.profile is None:
        return Finding(Level.NOTE, "none: there is no sandbox to keep them")
    groups = look_at_groups_now() if sys.platform == "linux" else None
    return _good(limits_here(sandbox.surroundings.limits, groups))


def _cgroups() -> str:
    """They make an end quicker and limits better; no promise depends on them."""
    found = look_at_groups_now()
    if found.problem is not None:
        return f"cgroups: not here ({found.problem})"
    return f"cgroups: yes, limiting {' and '.join(found.controllers) or 'nothing'}"


def check_terminal(patient: Patient) -> Finding:
    if open_tty() is None:
        return Finding(Level.NOTE, "none: what must be asked is refused", "callgate call --yes ...")
    colour = wants_colour(is_terminal(sys.stdout), os.environ)
    return _good(f"questions are asked here, {'in colour' if colour else 'without colour'}")


def check_instance(patient: Patient) -> Finding:
    found = running(patient.home.path)
    if not found:
        return _good("none: each command brings its own runtime")
    states = {each: state_of(each) for each in found}
    text = "; ".join(f"{each.pid} ({each.label}) {states[each].in_words}" for each in found)
    if broken := next((each for each in found if states[each].problem is not None), None):
        return Finding(Level.FAILED, text, f"callgate stop {broken.pid}, or correct the settings")
    if stale := next((each for each in found if states[each].restart_for), None):
        return Finding(Level.NOTE, text, f"callgate stop {stale.pid}, then callgate serve")
    return _good(text)


def check_hooks(patient: Patient) -> Finding:
    """Whether settings files show that an installed hook of an agent does not protect."""
    found = hook_warnings(patient.home.path, [patient.workspace])
    if found:
        return Finding(Level.FAILED, "; ".join(found), "callgate hook status says more")
    return _good("nothing turns off a hook of an agent")


def check_shared(patient: Patient) -> Finding:
    """Whether rules, trust and pins are as the store has them that several homes share."""
    try:
        shared = configured_store(patient.home)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {error.file}")
    if shared is None:
        return _good("this home shares no store")
    from callgate.config.mirror import Mirror  # lazy: most homes share nothing  # noqa: PLC0415

    mirror = Mirror(patient.home, shared)
    edited = mirror.edited()
    if edited:
        text = f"changed by hand, and not shared: {', '.join(edited)}"
        return Finding(Level.NOTE, text, "callgate policy import FILE, or remove the file")
    if not mirror.exists:
        text = f"no copy of what is in {shared.place}: calls with effects are refused without it"
        return Finding(Level.NOTE, text, "callgate policy export")
    return _good(f"rules, trust and pins are those of {shared.place}")


CHECKS: dict[str, Check] = {
    "python": check_python,
    "platform": check_platform,
    "home": check_home,
    "settings": check_settings,
    "tools": check_tools,
    "hosts": check_hosts,
    "trust": check_trust,
    "workspace": check_workspace,
    "store": check_store,
    "audit": check_audit,
    "shared": check_shared,
    "wall": check_wall,
    "sandbox": check_sandbox,
    **{name: partial(check_backend, name) for name in _BACKENDS},
    "limits": check_limits,
    "terminal": check_terminal,
    "instance": check_instance,
    "hooks": check_hooks,
}
