"""Programs that a package starts, by the launcher of its context."""

from callgate.core.commands import Command as Command
from callgate.core.commands import Exit as Exit
from callgate.core.commands import Launcher as Launcher
from callgate.core.commands import Stream as Stream
from callgate.sandbox.launch import child_environment as child_environment
from callgate.sandbox.launch import without_secrets_keys as without_secrets_keys
