"""The mode and the model of a session, as an editor offers them to be chosen."""

from __future__ import annotations

from collections.abc import Sequence

from callgate.core.sessions import Mode
from callgate.protocol.acp.values import Choice, ConfigOption, Modes, SelectOption
from callgate.protocol.acp.values import Mode as ModeChoice
from callgate.surfaces.live_sessions import MODES

MODE, MODEL = "mode", "model"
"""Ids of the options."""

_MODES = {
    Mode.NONE: ("None", "No tools."),
    Mode.READ: ("Read", "Reading and searching; commands in a sandbox that cannot write."),
    Mode.ASK: ("Ask", "What changes something is asked about, as the settings say."),
    Mode.GUARDED: (
        "Guarded",
        "Runs what stays in the workspace, and what goes where you said; asks about the rest.",
    ),
    Mode.WRITE: ("Write", "Everything runs without a question, but for what a rule asks about."),
}


def nearest(enabled: Sequence[Mode], wanted: Mode) -> Mode:
    """The mode itself where it may be had, else the widest of those below it, else the
    narrowest there is. `enabled` begins with that."""
    below = [mode for mode in enabled if MODES.index(mode) <= MODES.index(wanted)]
    return below[-1] if below else enabled[0]


def modes(enabled: Sequence[Mode], current: Mode) -> Modes:
    return Modes(
        current_mode_id=current,
        available_modes=[
            ModeChoice(id=mode, name=_MODES[mode][0], description=_MODES[mode][1])
            for mode in enabled
        ],
    )


def config_options(
    enabled: Sequence[Mode], mode: Mode, models: Sequence[str], model: str | None
) -> list[ConfigOption]:
    """All of them: the protocol wants the complete list each time."""
    choices = [
        Choice(value=each, name=_MODES[each][0], description=_MODES[each][1]) for each in enabled
    ]
    options: list[ConfigOption] = [
        SelectOption(
            id=MODE,
            name="Mode",
            description="What may run without a question.",
            category="mode",
            current_value=mode,
            options=choices,
        )
    ]
    if model is not None:
        names = [model, *(each for each in models if each != model)]
        options.append(
            SelectOption(
                id=MODEL,
                name="Model",
                category="model",
                current_value=model,
                options=[Choice(value=each, name=each) for each in sorted(names)],
            )
        )
    return options
