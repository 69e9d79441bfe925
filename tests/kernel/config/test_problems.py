"""Mistakes in settings are described with the line, the valid values and what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.config.load import SettingsError, load_changed, load_workspace

MODES = "none, read, ask, guarded, write"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('mode = "reed"', f"1: mode: 'reed' is not one of {MODES}; did you mean 'read'?"),
        ("mode = 5", f"1: mode: 5 is not one of {MODES}"),
        ('[acp]\nmodes = ["ask", "xx"]', f"2: acp.modes.1: 'xx' is not one of {MODES}"),
        ('modle = "ask"', "1: unknown key 'modle'; did you mean 'mode'?"),
        ("[policy.guard]\nenabeld = true", "2: unknown key 'enabeld' in policy.guard; did you mean 'enabled'?"),
        ('[mcp.a]\ncommand = "x"\n[mcp.b]\ncomand = "x"', "4: unknown key 'comand' in mcp.b; did you mean 'command'?"),
        ('[mcp.files]\ncommand = ["npx"]', "2: mcp.files.command: expected a text or nothing, got a list"),
        (
            '[mcp.a]\ncommand = "x"\n[mcp.b]\ncommand = "x"\nprofile = "ope"',
            "5: mcp.b.profile: 'ope' is not one of workspace, open; did you mean 'open'?",
        ),
        (
            '[[policy.rules]]\ntool = "x"\ndecision = "alow"',
            "3: policy.rules.0.decision: 'alow' is not one of allow, ask, deny; did you mean 'allow'?",
        ),
        ('[[policy.rules]]\ntool = "x"', "1: policy.rules.0 needs the key 'decision'"),
        ('[policy.default]\nread = "denny"', "2: policy.default.read: 'denny' is not one of auto,"),
        ('sandbox = "of"', "1: sandbox: 'of' is not one of off, or a table; did you mean 'off'?"),
        ('[audit]\nmax_bytes = "x"', "2: audit.max_bytes: expected a whole number, got a text"),
        ('tags = "x"', "1: tags: expected a list, got a text"),
        ("\n[policy", "2: not valid TOML: Expected ']'"),
        ("mode = 'ask'\nmode = 'ask'\n", "2: not valid TOML: "),
    ],
)
def test_a_mistake_is_described_with_its_line_and_the_valid_values(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_changed(Home("/nowhere"), text.encode(), "settings.toml")
    assert str(raised.value).startswith(f"settings.toml:{problem}")


def test_a_table_without_a_similar_key_lists_its_keys() -> None:
    with pytest.raises(SettingsError) as raised:
        load_changed(Home("/nowhere"), b"[durability]\nzzzz = 1", "settings.toml")
    assert "unknown key 'zzzz' in durability; valid keys are " in str(raised.value)


def test_a_workspace_is_told_which_keys_only_the_user_may_set(tmp_path: Path) -> None:
    (tmp_path / ".callgate").mkdir()
    (tmp_path / ".callgate" / "settings.toml").write_text('model = "x"\n')
    with pytest.raises(SettingsError) as raised:
        load_workspace(str(tmp_path))
    assert str(raised.value).endswith("unknown key 'model'; it is allowed only in your own settings")
