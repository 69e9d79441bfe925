"""Directories of an MCP server in the home: installation, private HOME, caches, fingerprints."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from callgate.core.errors import ToolError
from callgate.core.local.disk import make_private_directory, write_private
from callgate.features.mcp.client.package_commands import runs_package
from callgate.sandbox.dry_runs.manifests import remove_tree

_PREFIX = "install-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class InstallRecord(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """The requested packages and options (`PackageCommand.key`)."""
    directory: str
    """Name of the installation's directory in the server's directory."""
    fingerprint: str
    versions: dict[str, str]
    locks: dict[str, str]
    """Lock files, by name, to fetch the same versions again."""


class Installation:
    """The packages of one server."""

    def __init__(self, home: str, name: str) -> None:
        """Raises `ValueError` for a name that leads out of the directory of all servers."""
        if name in ("", ".", "..") or os.path.basename(name) != name:
            raise ValueError(f"{name!r} is not the name of an MCP server")
        self.path = os.path.join(home, "mcp", name)
        self._record = os.path.join(self.path, "install.json")
        self._leases: dict[str, int] = {}

    @property
    def record(self) -> InstallRecord | None:
        """The record of the present installation; None if it is missing or unreadable."""
        try:
            with open(self._record, "rb") as file:
                return msgspec.json.decode(file.read(), type=InstallRecord)
        except (OSError, ValueError, RecursionError):
            return None

    @property
    def cache(self) -> str:
        """The server's cache directory. Created if it is missing."""
        path = os.path.join(self.path, "cache")
        make_private_directory(path)
        return path

    @property
    def home(self) -> str:
        """The directory in which the server stores its data. Created if it is missing."""
        make_private_directory(self.home_path)
        return self.home_path

    @property
    def home_path(self) -> str:
        return os.path.join(self.path, "home")

    def directory(self, record: InstallRecord) -> str:
        return os.path.join(self.path, os.path.basename(record.directory))

    @contextlib.contextmanager
    def fetching(self) -> Iterator[str]:
        """Create a directory for a fetch; remove it at the end unless the record names it."""
        make_private_directory(self.path)
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=self.path)
        self.hold(path)
        try:
            yield path
        finally:
            if self.record is None or self.directory(self.record) != path:
                self._release(path)
            self._sweep()

    def write(self, record: InstallRecord) -> None:
        write_private(self._record, msgspec.json.encode(record).decode())

    def hold(self, directory: str) -> None:
        """Lock the directory, so that no process removes it while this process runs."""
        if directory not in self._leases:
            descriptor = os.open(directory, _DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._leases[directory] = descriptor

    def remove(self) -> None:
        """Remove the packages and the cache. The server's data stays (`remove_home`), and so do
        packages that another process runs."""
        for directory in [*self._leases]:
            self._release(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._record)
        with contextlib.suppress(OSError):
            self._sweep()
            remove_tree(os.path.join(self.path, "cache"))
        self._remove_if_empty()

    def remove_home(self) -> bool:
        """Delete the data that the server stored. False if there was none."""
        try:
            remove_tree(self.home_path)
        except FileNotFoundError:
            return False
        self._remove_if_empty()
        return True

    def _remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def _release(self, directory: str) -> None:
        descriptor = self._leases.pop(directory, None)
        if descriptor is not None:
            os.close(descriptor)

    def _sweep(self) -> None:
        record = self.record
        counts = None if record is None else os.path.basename(record.directory)
        with os.scandir(self.path) as entries:
            found = [each for each in entries if each.name.startswith(_PREFIX)]
        for each in found:
            if each.name != counts and each.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # another process uses it
                    _remove(each.path)


def _remove(path: str) -> None:
    descriptor = os.open(path, _DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)
    finally:
        os.close(descriptor)


_XDG = {
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}
_CACHE = ".cache"
_BROWSERS = (".cache/ms-playwright", ".cache/puppeteer")
"""Browsers that Playwright and Puppeteer downloaded. The servers also write to these directories,
so each entry is linked, not the directory. No other cache of the user is visible."""
_OWN_FILES: dict[tuple[str, ...], tuple[str, str]] = {
    ("@modelcontextprotocol/server-memory", "mcp-server-memory"): (
        "MEMORY_FILE_PATH",
        "{home}/memory.jsonl",
    ),
    # With Node on PATH it runs `npm install` in its own code at the first call. An option that Node
    # does not know makes it use Python instead.
    ("mcp-server-fetch", "mcp_server_fetch"): ("NODE_OPTIONS", "--not-in-this-sandbox"),
}
"""Programs that write next to their own code unless a variable prevents it."""


def prepare(home: str, cache: str, user_home: str, visible: Iterable[str]) -> dict[str, str]:
    """Create the directories and links, and return the variables that point to them.

    `visible` are the paths that are visible in the sandbox; those below the user's home are linked.
    """
    for name in _XDG.values():
        with contextlib.suppress(OSError), _opened(home, name.split("/")):
            pass
    with _opened(home, ()) as top:
        _link(top, _CACHE, cache)
    for path, name in _linked(user_home, visible):
        root = cache if name.startswith(f"{_CACHE}/") else home
        steps = name.removeprefix(f"{_CACHE}/").split("/")
        with contextlib.suppress(OSError), _opened(root, steps[:-1]) as directory:
            _link(directory, steps[-1], path)
    return {
        "HOME": home,
        **{variable: os.path.join(home, name) for variable, name in _XDG.items()},
        "XDG_CACHE_HOME": cache,
    }


def own_file_variables(argv: Sequence[str], home: str) -> dict[str, str]:
    """Return variables that stop a known program from writing next to its own code."""
    return {
        variable: value.format(home=home)
        for names, (variable, value) in _OWN_FILES.items()
        if any(runs_package(argv, name) for name in names)
    }


def _linked(user_home: str, visible: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each visible path below the user's home, with its path relative to the home."""
    for path in sorted(set(visible)):
        name = os.path.relpath(path, user_home)
        if name in _BROWSERS:
            with contextlib.suppress(OSError):
                for entry in sorted(os.listdir(path)):
                    yield os.path.join(path, entry), f"{name}/{entry}"
        elif name != "." and name.split("/")[0] not in ("..", _CACHE):
            yield path, name


@contextlib.contextmanager
def _opened(top: str, steps: Iterable[str]) -> Iterator[int]:
    """Open a directory below another one; create it if missing. Raises `OSError` for a link."""
    here = os.open(top, _DIRECTORY)
    try:
        for step in steps:
            with contextlib.suppress(FileExistsError):
                os.mkdir(step, 0o700, dir_fd=here)
            below = os.open(step, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _link(directory: int, name: str, target: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.symlink(target, name, dir_fd=directory)


_SHARED = (
    ".npm",
    ".cache/node",
    ".local/share/pnpm",
    ".cache/pnpm",
    ".cache/yarn",
    ".yarn",
    ".bun",
    ".cache/uv",
    ".local/share/uv",
    ".cache/pipx",
    ".local/share/pipx",
    ".local/pipx",
    ".cache/deno",
)
"""Directories below a home that package managers share between all programs, sandboxed or not."""


def private_caches(cache: str) -> dict[str, str]:
    """Return the variables that move the directories of all package managers below `cache`."""
    directories = {
        "XDG_CACHE_HOME": "",
        "npm_config_cache": "npm",
        "PNPM_HOME": "pnpm",
        "YARN_CACHE_FOLDER": "yarn",
        "YARN_GLOBAL_FOLDER": "yarn-global",
        "BUN_INSTALL_CACHE_DIR": "bun",
        "UV_CACHE_DIR": "uv",
        "UV_TOOL_DIR": "uv-tools",
        "UV_TOOL_BIN_DIR": "uv-bin",
        "UV_PYTHON_INSTALL_DIR": "uv-python",
        "PIP_CACHE_DIR": "pip",
        "PIPX_HOME": "pipx",
        "PIPX_BIN_DIR": "pipx-bin",
        "DENO_DIR": "deno",
        "COREPACK_HOME": "corepack",
    }
    return {
        name: os.path.join(cache, directory).rstrip("/") for name, directory in directories.items()
    }


def without_shared(paths: Iterable[str], home: str) -> Iterator[str]:
    """Yield the paths outside the shared directories of package managers."""
    shared = [os.path.realpath(os.path.join(home, name)) for name in _SHARED]
    for path in paths:
        real = os.path.realpath(path)
        if not any(real == each or real.startswith(f"{each}/") for each in shared):
            yield path


MOST_ENTRIES = 500_000
_BLOCK = 512
"""The unit of `st_blocks`, on every file system."""


def fingerprint(directory: str) -> str:
    """Return a hash of all names, modes, sizes and times below a directory.

    Raises `OSError`, or `ToolError` if there are too many files.
    """
    found = hashlib.sha256()
    for line in sorted(_lines(directory)):
        found.update(line)
    return found.hexdigest()


def disk_usage(directory: str) -> int:
    """Return the disk usage in bytes, while other processes may write to the directory.

    Files that disappear during the count are skipped. Raises `ToolError` if there are too many
    files or a directory is unreadable.
    """
    taken: dict[tuple[int, int], int] = {}
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        facts = entry.stat(follow_symlinks=False)
                        taken[facts.st_dev, facts.st_ino] = facts.st_blocks * _BLOCK
                        if stat.S_ISDIR(facts.st_mode):
                            waiting.append(entry.path)
                    if len(taken) > MOST_ENTRIES:
                        raise ToolError(f"It has more than {MOST_ENTRIES} files.")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            raise ToolError("It has an unreadable directory.") from None
    return sum(taken.values())


def _lines(directory: str) -> Iterator[bytes]:
    for path, facts in _entries(directory):
        name = os.fsencode(os.path.relpath(path, directory))
        detail = b""
        if stat.S_ISLNK(facts.st_mode):
            detail = os.fsencode(os.readlink(path))
        elif _is_file(facts):
            detail = f"{facts.st_size} {facts.st_mtime_ns}".encode()
        yield b"%d:%s %o %d:%s\n" % (len(name), name, facts.st_mode, len(detail), detail)


def _entries(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    waiting, count = [directory], 0
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if count > MOST_ENTRIES:
                    raise ToolError(f"It has more than {MOST_ENTRIES} files.")
                yield entry.path, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _is_file(facts: os.stat_result) -> bool:
    return stat.S_ISREG(facts.st_mode)
