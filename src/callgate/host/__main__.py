"""Command line of a host: load its tools, then serve the runtime over stdin and stdout.

python -m callgate.host FILE_OR_MODULE        `@tool` functions, or a plugin
python -m callgate.host --script PATH ...     executables that answer schema, preview and run
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from callgate.host import take_streams
from callgate.host.pipes import Pipe
from callgate.host.plugins import Plugin, load_plugin
from callgate.host.serving import HostProcess
from callgate.sources.functions import ToolLoadError

USAGE = "usage: python -m callgate.host FILE_OR_MODULE | --script PATH ..."


def main(given: Sequence[str]) -> int:
    """Serve until stdin ends. Return the exit code."""
    if not given or given[0] in ("-h", "--help") or (given[0] != "--script" and len(given) > 1):
        print(USAGE, file=sys.stderr)
        return 0 if "--help" in given or "-h" in given else 2
    requests, answers = take_streams()
    try:
        plugin = _load(given)
    except ToolLoadError as error:
        print(f"callgate host: {error}", file=sys.stderr)
        return 1
    try:
        HostProcess(plugin, Pipe(requests, answers)).serve()
    except KeyboardInterrupt:
        return 130
    return 0


def _load(given: Sequence[str]) -> Plugin:
    if given[0] != "--script":
        return load_plugin(given[0])
    from callgate.host.scripts import ScriptPlugin  # lazy: most hosts are Python  # noqa: PLC0415

    return ScriptPlugin(given[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
