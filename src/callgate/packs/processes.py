"""Programs that a package starts, with the launcher of its context."""

from callgate.core.commands import Command as Command
from callgate.core.commands import Exit as Exit
from callgate.core.commands import Launcher as Launcher
from callgate.core.commands import Stream as Stream
from callgate.sandbox.plans import child_environment as child_environment
from callgate.sandbox.plans import without_secrets_keys as without_secrets_keys
