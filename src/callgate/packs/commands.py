"""Commands of the command line: what they are called and what they take.

Light, because the help of callgate imports every module that says this of a command: import what
a command does inside its `run`."""

from callgate.cli.errors import CliError as CliError
from callgate.cli.families.command import HERE as HERE
from callgate.cli.families.command import Command as Command
from callgate.cli.families.command import Parser as Parser
from callgate.cli.families.command import add as add
from callgate.cli.families.command import positive as positive
from callgate.cli.families.command import takes as takes
from callgate.cli.options import JSON as JSON
from callgate.cli.options import Option as Option
