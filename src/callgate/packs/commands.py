"""Declarations of commands: names, options and arguments.

Imports little, because the help of callgate imports every module that declares a command. Import
the implementation of a command inside its `run`.
"""

from callgate.cli.command import HERE as HERE
from callgate.cli.command import Command as Command
from callgate.cli.command import add as add
from callgate.cli.command import positive as positive
from callgate.cli.command import takes as takes
from callgate.cli.errors import CliError as CliError
from callgate.cli.options import JSON as JSON
from callgate.cli.options import Option as Option
from callgate.cli.parsers import Parser as Parser
