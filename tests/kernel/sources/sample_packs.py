"""Packages of tools, as an installer leaves them: modules, and a dist-info with entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WEATHER = '''
from callgate import Session, tool
from callgate.packs.tools import Pack, PackContext, PackTool


@tool(side_effects="none")
async def forecast(city: str) -> str:
    """Say what the weather will be."""
    return f"{city}: rain"


@tool(side_effects="none")
def sum_up(numbers: list[int]) -> int:
    """Add numbers, in a process of its own."""
    return sum(numbers)


@tool(side_effects="none")
async def alert() -> str:
    """Warn of storms."""
    return "storm"


def pack(context: PackContext) -> Pack:
    def why_not(session: Session) -> str | None:
        return None if context.settings.get("alerts") else "there is no alerts = true in its settings"

    return Pack(tools=[forecast, sum_up, PackTool(factory=alert, why_not=why_not)])
'''
COMMANDS = """
from callgate.packs.commands import JSON, Command, takes


def run(options):
    from callgate.packs.terminal import print_json, read_settings

    home, settings = read_settings("weather")
    print_json({"words": options.words, "settings": settings})
    return 0


COMMANDS = {"weather today": Command("say what the weather is", "CITY", takes(JSON), run=run)}
"""


def install(
    site: Path,
    name: str = "acme-weather",
    *,
    modules: Mapping[str, str] = {"acme_weather": WEATHER, "acme_commands": COMMANDS},  # noqa: B006
    tools: Mapping[str, str] = {"weather": "acme_weather:pack"},  # noqa: B006
    commands: Mapping[str, str] = {},  # noqa: B006
    entry_points: bytes | None = None,
    metadata: str | None = None,
) -> None:
    """`entry_points` and `metadata` stand in place of good ones."""
    site.mkdir(exist_ok=True)
    for module, source in modules.items():
        (site / f"{module}.py").write_text(source)
    about = site / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    lines = ["[callgate.tools]", *(f"{key} = {value}" for key, value in tools.items())]
    lines += ["[callgate.commands]", *(f"{key} = {value}" for key, value in commands.items())]
    (about / "entry_points.txt").write_bytes(entry_points or "\n".join(lines).encode())
    (about / "METADATA").write_text(metadata or f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
