"""The fixtures of the command line for the tests of features."""

from tests.kernel.cli.conftest import _not_within_a_call, tools, ws  # noqa: F401
