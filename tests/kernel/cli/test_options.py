"""The fast path reads the options of `call` and `acp` as argparse does, or leaves them to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.cli.command_line import parser_of, read
from callgate.cli.errors import CliError
from callgate.cli.options import ACP, CALL, DEBUG, TARGETS, read_acp, read_call

FLAGS = [flag for option in (*CALL, *TARGETS, DEBUG) for flag in option.flags]
WORDS = st.sampled_from(
    [
        *FLAGS,
        "-",
        "--",
        "-x",
        "-qv",
        "--no",
        "--jso",
        "--json=1",
        "--mode=read",
        "--args={}",
        "--timeout=2",
        "-q=1",
        "",
        "tool",
        "a=b",
        "a=--yes",
        "read",
        "write",
        "everything",
        "0",
        "1.5",
        "-1",
        "nan",
        "{}",
        "- x",
    ]
)


def long_way(given: list[str], command: str = "call") -> dict[str, Any] | None:
    try:
        return vars(read(command, given))
    except (CliError, SystemExit):
        return None


@given(st.lists(WORDS, max_size=7))
def test_what_is_read_the_short_way_is_what_argparse_reads(given: list[str]) -> None:
    quickly = read_call(given)
    if quickly is not None:
        assert vars(quickly) == long_way(given)


@pytest.mark.parametrize(
    "given",
    [
        "tool",
        "tool a=b --json",
        "--args - tool",
        "tool --timeout 2 -v -q --yes",
        "tool --mode=read",
        "tool --socket /x",
        "tool --instance=web",
        "tool --no-instance",
        "tool -- --yes",
        "-- --yes",
    ],
)
def test_the_usual_ones_go_the_short_way(given: str) -> None:
    assert vars(read_call(given.split())) == long_way(given.split())


@pytest.mark.parametrize(
    "given",
    [
        "",
        "--",
        "--json",
        "tool --help",
        "tool -h",
        "tool --timeout",
        "tool --timeout -1",
        "tool --timeout nan",
        "tool --mode all",
        "tool --unknown",
        "tool -qv",
        "tool --socket x --no-instance",
        "tool --json=1",
    ],
)
def test_what_is_wrong_or_odd_goes_the_long_way(given: str) -> None:
    assert read_call(given.split()) is None


def test_both_parsers_know_the_same_options() -> None:
    assert set(FLAGS) | {"-h", "--help"} == set(parser_of("call")._option_string_actions)


ACP_FLAGS = [flag for option in (*ACP, DEBUG) for flag in option.flags]


@given(
    st.lists(
        st.sampled_from(
            [*ACP_FLAGS, "-", "--", "-vvv", "-x", "--mode=ask", "--mode=all", "--model=", "zed", "ask", ""]
        ),
        max_size=6,
    )
)
def test_the_options_of_acp_are_read_alike_both_ways(given: list[str]) -> None:
    quickly = read_acp(given)
    if quickly is not None:
        assert vars(quickly) == long_way(given, "acp")


@pytest.mark.parametrize(
    "given", ["", "-v", "-vv --mode read", "--model scripted:a.jsonl --unstable", "--print-config zed"]
)
def test_a_usual_acp_goes_the_short_way(given: str) -> None:
    assert vars(read_acp(given.split())) == long_way(given.split(), "acp")


@pytest.mark.parametrize("given", ["word", "--help", "--mode all", "--print-config vi", "--model"])
def test_an_acp_that_is_wrong_goes_the_long_way(given: str) -> None:
    assert read_acp(given.split()) is None


@pytest.mark.parametrize("command", ["mcp add", "mcp wrap", "sandbox", "preview", "host check"])
def test_options_of_a_wrapped_command_before_two_hyphens_are_refused_with_the_way_to_write_them(command: str) -> None:
    with pytest.raises(CliError) as refused:
        read(command, ["program", "-y", "package"])
    assert "write -- before COMMAND" in refused.value.hint


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--qqqq", "See callgate serve --help."),
        ("--workspce=1", "Did you mean --workspace? See callgate serve --help."),
    ],
)
def test_another_unknown_option_leads_to_the_nearest_one_and_the_help(option: str, hint: str) -> None:
    with pytest.raises(CliError) as refused:
        read("serve", [option])
    assert refused.value.hint == hint
