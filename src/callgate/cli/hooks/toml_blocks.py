"""Our block of hooks in an agent's settings of TOML: between two lines that mark it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

from callgate.cli.errors import CliError

BEGIN, END = "# callgate begin", "# callgate end"


def with_block(agent: str, text: str, tables: str) -> str:
    """The text with our tables at its end. Raises `CliError`."""
    gap = "" if not text or text.endswith("\n") else "\n"
    new = f"{text}{gap}{BEGIN}\n{tables}\n{END}\n"
    try:
        tomllib.loads(new)
    except (ValueError, RecursionError) as error:
        raise CliError(
            f"the settings of {agent} cannot take another [[hooks]]: {error}",
            hint="Write the hooks there as [[hooks]] tables.",
        ) from None
    return new


def without_blocks(agent: str, text: str, is_ours: Callable[[Any], bool]) -> str:
    """The text without our block, if it means the same but for our hooks. Raises `CliError`."""
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.strip() == (END if inside else BEGIN):
            inside = not inside
        elif not inside:
            kept.append(line)
    after = "".join(kept)
    if inside or _meaning(agent, after) != _meaning(agent, text, is_ours):
        raise CliError(
            f"the settings of {agent} have more or less than callgate's hooks between the lines"
            f" {BEGIN!r} and {END!r}: nothing was changed",
            hint="Put these two lines around callgate's [[hooks]] alone, or remove all by hand.",
        )
    return after


def _meaning(
    agent: str, text: str, is_ours: Callable[[Any], bool] = lambda hook: False
) -> dict[str, Any]:
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"the settings of {agent} are not TOML: {error}") from None
    if isinstance(hooks := found.get("hooks"), list):
        left = [each for each in hooks if not is_ours(each)]
        found = (
            {**found, "hooks": left} if left else {k: v for k, v in found.items() if k != "hooks"}
        )
    return found
