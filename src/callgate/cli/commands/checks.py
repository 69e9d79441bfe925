"""The checks of `callgate doctor`: functions that each return one finding.

To add a check, write a function of a `Patient` that returns a `Finding`. Put it into `_OF_KERNEL`
or into the `checks` of its feature, and its name into `_ORDER`. A check changes nothing, and
reports problems as findings, not as exceptions.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from callgate.audit.reading import tail
from callgate.audit.records import all_segments, line_hash
from callgate.audit.verify import verify
from callgate.cli.commands.machine_checks import (
    PythonBug,
    bugs_here,
    improvement,
    limits_here,
    path_rules_here,
    profiles_here,
    promises,
    store_finding,
)
from callgate.cli.embedded import open_runtime
from callgate.cli.errors import CliError
from callgate.cli.findings import Check, Finding, Level, Patient, good
from callgate.cli.instance_http import InstanceState, state_of
from callgate.cli.platforms import missing_on
from callgate.cli.ui.terminal import is_terminal, wants_colour
from callgate.cli.ui.tty import open_tty
from callgate.config.home import workspace_settings
from callgate.config.load import SettingsError, load_user, load_workspace
from callgate.config.trust import is_trusted, trusted
from callgate.core.errors import ToolError
from callgate.dispatch.commands.sandboxes import OFF, Sandbox
from callgate.dispatch.tools.registry import Registry
from callgate.feature import FEATURES, load
from callgate.instance.wiring.builder import build, register_known
from callgate.instance.wiring.runtime import surroundings
from callgate.sandbox.machines import look_at_groups_now
from callgate.socket.instances import InstanceRecord, origin_in_words, running
from callgate.socket.queries import every
from callgate.workspace.opening import Openat2, best_opener

if TYPE_CHECKING:
    from callgate.sources.host_provider import HostedTools, Hosts

_LEAST_PYTHON = (3, 11)
_WHOLE_LOG = 16 * 1024 * 1024
_NEWEST = 1_000
_LOW_SPACE = 500_000_000
_NO_SPACE = 20_000_000
_BACKENDS = ("landlock", "seccomp", "supervisor", "namespaces", "bubblewrap")


def check_python(patient: Patient) -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] < _LEAST_PYTHON:
        return Finding(Level.FAILED, f"{version} is too old", "install Python 3.11 or newer")
    return python_finding(version, bugs_here())


def python_finding(version: str, bugs: Sequence[PythonBug]) -> Finding:
    """Fail if a bug of this Python breaks a promise of callgate; other bugs are notes."""
    text = "; ".join([version, *(bug.text for bug in bugs)])
    if any(bug.breaks_promise for bug in bugs):
        return Finding(Level.FAILED, text, "use another release of Python")
    return Finding(Level.NOTE, text) if bugs else good(text)


def check_platform(patient: Patient) -> Finding:
    name = f"{platform.system()} {platform.release()}"
    lacking = missing_on(sys.platform)
    return good(name) if lacking is None else Finding(Level.FAILED, lacking, "use Linux")


def check_home(patient: Patient) -> Finding:
    path = patient.home.path
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return Finding(Level.NOTE, f"{path} does not exist yet", "callgate init")
    except OSError as error:
        return Finding(Level.FAILED, f"{path}: {error.strerror}", f"ls -ld {path}")
    if not stat.S_ISDIR(status.st_mode):
        return Finding(Level.FAILED, f"{path} is not a directory", f"ls -ld {path}")
    if status.st_uid != os.geteuid():
        return Finding(Level.FAILED, f"{path} belongs to another user", f"ls -ld {path}")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return Finding(Level.FAILED, f"{path} is open to others ({mode:04o})", f"chmod 700 {path}")
    return good(path)


def check_settings(patient: Patient) -> Finding:
    try:
        settings = load_user(patient.home)[0]
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {error.file}, then callgate doctor")
    path = patient.home.settings
    if settings.durability.files == "fast":
        text = "written files are not synced ([durability]): a power cut may lose them"
        return Finding(Level.NOTE, f"{path}; {text}")
    return good(path if os.path.exists(path) else f"{path} does not exist: all defaults")


def check_tools(patient: Patient) -> Finding:
    here = Namespace(debug=False, workspace=patient.workspace, mode=None)
    try:
        wired, session = open_runtime(here, register=register_known)
    except CliError as error:
        return Finding(Level.FAILED, error.message, error.hint)
    known = every(wired.runtime, session)  # as in `callgate tools`
    visible = sum(tool["visible"] for tool in known)
    hidden = len(known) - visible
    return good(f"{visible} available" + (f", {hidden} not" if hidden else ""))


def check_hosts(patient: Patient) -> Finding:
    try:
        settings, _ = load_user(patient.home)
    except SettingsError:
        return Finding(Level.NOTE, "unknown until the settings are valid")
    if not settings.hosts:
        return good("none")
    from callgate.instance.wiring.hosts import make_hosts  # lazy: most homes have none  # noqa: PLC0415
    from callgate.sources.host_provider import HostedTools  # lazy: most homes have none  # noqa: PLC0415

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
    return good(text)


def _hosted(patient: Patient) -> HostedTools | None:
    """Return the registered tools of hosts; None if the settings prevent their registration."""
    try:
        return build(patient.home, patient.workspace, register_known, audit=False).hosts
    except SettingsError:
        return None


def _host_problem(hosts: Hosts, hosted: HostedTools, name: str) -> Finding | None:
    """Return a problem of a host that is known without starting it."""
    settings, trouble = hosts.hosts[name].settings, hosts.trouble(name)
    program = settings.command[0]
    path = os.path.join(settings.cwd, program) if os.sep in program else program
    if shutil.which(path, path=settings.env.get("PATH")) is None:
        return Finding(
            Level.FAILED,
            f"{program} does not exist or is not executable",
            f"correct the command of [hosts.{name}]",
        )
    doubt = hosts.doubt(name)
    if doubt is not None:
        return Finding(Level.FAILED, str(doubt), f"callgate hosts reload {name}")
    if trouble is not None:
        given_up = "not restarted any more: " if trouble.given_up else ""
        return Finding(Level.NOTE, f"{given_up}{trouble.problem}", f"callgate hosts logs {name}")
    if hosts.pinned(name) is None:
        return Finding(Level.NOTE, "never started", f"callgate hosts reload {name}")
    for tool, why in hosted.left_out(name).items():
        return Finding(Level.NOTE, f"tool {tool!r} is not offered: {why}", "callgate hosts list")
    if "-m" in settings.command and not {"-P", "-I"} & {*settings.command}:
        return Finding(
            Level.NOTE,
            "python -m imports modules of its working directory before all others",
            f"put -P before -m in the command of [hosts.{name}]",
        )
    return None


def check_trust(patient: Patient) -> Finding:
    try:
        directories = trusted(patient.home)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"rm {error.file}")
    return good(f"{len(directories)} trusted directories")


def check_workspace(patient: Patient) -> Finding:
    path = workspace_settings(patient.workspace)
    if not os.path.lexists(path):
        return good(f"{patient.workspace} has no workspace settings")
    try:
        if not is_trusted(patient.home, patient.workspace):
            return Finding(
                Level.NOTE, f"{path} is not read: the directory is not trusted", "callgate trust ."
            )
        load_workspace(patient.workspace)
    except SettingsError as error:
        return Finding(Level.FAILED, str(error), f"correct {error.file}")
    return good(f"{path} narrows your settings")


def check_store(patient: Patient) -> Finding:
    return store_finding(patient.home)


def check_audit(patient: Patient) -> Finding:
    path = patient.home.audit
    if not os.path.exists(path):
        return good(f"{path} (the first call creates it)")
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            Level.FAILED,
            f"{path} cannot be written: calls with effects are refused",
            f"chmod 600 {path}",
        )
    if not _is_whole(path):
        return Finding(Level.FAILED, f"{path} was changed", "callgate audit verify")
    return good(path)


def _is_whole(path: str) -> bool:
    """Whether the log is intact; for a large log only its newest lines are checked."""
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
        return good("openat2: the kernel keeps paths inside the workspace")
    return Finding(Level.NOTE, "no openat2: paths are opened in steps, which is slower")


@lru_cache(maxsize=1)  # probing the machine is slow
def sandbox_of(patient: Patient) -> Sandbox | None:
    """Return the sandbox of the settings; None if they are unreadable."""
    try:
        settings, _ = load_user(patient.home)
    except SettingsError:
        return None
    return Sandbox(surroundings(patient.home, settings))


def check_sandbox(patient: Patient) -> Finding:
    sandbox = sandbox_of(patient)
    if sandbox is None:
        return Finding(Level.NOTE, "unknown until the settings are valid")
    if sandbox.surroundings.profile is None:
        return Finding(
            Level.NOTE,
            "off: commands run without a sandbox",
            f'remove sandbox = "off" from {patient.home.settings}',
        )
    profiles = profiles_here(sandbox, patient.workspace)
    try:
        rules = path_rules_here(sandbox, patient.workspace)
    except ToolError as error:
        fix = "commands are refused here; see docs/decide/policy.md"
        return Finding(Level.FAILED, str(error), fix)
    missing = [each for each in profiles if each.missing]
    if not missing:
        cgroups = [_cgroups()] if sys.platform == "linux" else []
        text = "; ".join([*map(str, profiles), *rules, *cgroups])
        if any(each.grades for each in profiles):
            return Finding(Level.NOTE, text, improvement() or "see docs/decide/sandbox.md")
        return good(text)
    level = Level.FAILED if any(each.profile == "workspace" for each in missing) else Level.NOTE
    return Finding(level, "; ".join(map(str, missing)), _sandbox_fix(sandbox))


def _sandbox_fix(sandbox: Sandbox) -> str:
    if (command := improvement()) is not None:
        return command
    works = any(each.name == "bubblewrap" and each.problem is None for each in sandbox.backends)
    if works or sys.platform != "linux":
        return "see docs/decide/sandbox.md"
    return "install bubblewrap (on Debian and Ubuntu: sudo apt install bubblewrap)"


def check_backend(name: str, patient: Patient) -> Finding:
    sandbox = sandbox_of(patient) or Sandbox(OFF)
    backend = next(each for each in sandbox.backends if each.name == name)
    if backend.problem is not None:
        return Finding(Level.NOTE, f"unavailable: {backend.problem}")
    return good(", ".join(promises(backend)))


def check_limits(patient: Patient) -> Finding:
    sandbox = sandbox_of(patient)
    if sandbox is None or sandbox.surroundings.profile is None:
        return Finding(Level.NOTE, "none: there is no sandbox to enforce them")
    groups = look_at_groups_now() if sys.platform == "linux" else None
    return good(limits_here(sandbox.surroundings.limits, groups))


def _cgroups() -> str:
    """Describe the cgroups. They improve limits and termination; no guarantee depends on them."""
    found = look_at_groups_now()
    if found.problem is not None:
        return f"cgroups: unavailable ({found.problem})"
    return f"cgroups: yes, limiting {' and '.join(found.controllers) or 'nothing'}"


def check_terminal(patient: Patient) -> Finding:
    if open_tty() is None:
        text = "none: calls that need approval are refused"
        return Finding(Level.NOTE, text, "callgate call --yes ...")
    colour = wants_colour(is_terminal(sys.stdout), os.environ)
    return good(f"approval works here, {'in colour' if colour else 'without colour'}")


def check_instance(patient: Patient) -> Finding:
    found = running(patient.home.path)
    if not found:
        return good("no, each command runs alone")
    states = {each: state_of(each) for each in found}
    text = "; ".join(
        f"{each.pid} ({each.label}) {states[each].in_words}{origin_in_words(each)}"
        for each in found
    )
    if broken := next((each for each in found if states[each].problem is not None), None):
        return Finding(Level.FAILED, text, _instance_fix(broken, states[broken]))
    if stale := next((each for each in found if states[each].restart_for), None):
        return Finding(Level.NOTE, text, f"callgate stop {stale.pid}, then callgate serve")
    return good(text)


def _instance_fix(instance: InstanceRecord, state: InstanceState) -> str:
    """Return the fix; an instance that answers fails only because of invalid settings."""
    if state.policy is not None:
        return "correct the settings: the instance reads them again without a restart"
    return f"callgate stop {instance.pid}, then callgate serve --detach"


def check_space(patient: Patient) -> Finding:
    """Check that the disk of the home has room for records."""
    path = patient.home.path
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(Level.FAILED, f"{path}: {error.strerror}", f"df {path}")
    text = f"{free / 1e9:,.1f} GB free" if free >= _LOW_SPACE else f"only {free / 1e6:,.0f} MB free"
    if free >= _LOW_SPACE:
        return good(text)
    level = Level.NOTE if free >= _NO_SPACE else Level.FAILED
    return Finding(level, f"{text} for records", "callgate prune --dry-run")


_ORDER = (
    "python",
    "platform",
    "home",
    "settings",
    "tools",
    "hosts",
    "servers",
    "trust",
    "workspace",
    "store",
    "audit",
    "shared",
    "wall",
    "sandbox",
    *_BACKENDS,
    "limits",
    "terminal",
    "instance",
    "hooks",
    "models",
    "space",
)
_OF_KERNEL: Mapping[str, Check] = {
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
    "wall": check_wall,
    "sandbox": check_sandbox,
    **{name: partial(check_backend, name) for name in _BACKENDS},
    "limits": check_limits,
    "terminal": check_terminal,
    "instance": check_instance,
    "space": check_space,
}


def all_checks() -> dict[str, Check]:
    """Return the checks of the kernel and of the installed features, in the report's order."""
    found = dict(_OF_KERNEL)
    for listed in FEATURES:
        feature = load(listed.name)
        found |= {} if feature is None else feature.checks()
    return {name: found[name] for name in _ORDER if name in found}
