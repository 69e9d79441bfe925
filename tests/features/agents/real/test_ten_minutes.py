"""The first ten minutes of a new user, with the real programs: each step as README says it.

The demo, Claude Code behind callgate, a question that a person answers in the browser, an edit that
is undone, and an MCP server from a registry whose certificate only npm's own settings know.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from callgate.features.agents.commands.trying import ScriptedModel, Step, serving
from callgate.features.agents.known.values import KEY
from tests.features.agents.real.gates import PROGRAMS
from tests.features.mcp.packages.authorities import Authority
from tests.features.mcp.packages.registries import serving as serving_packages
from tests.features.mcp.packages.worlds import World, program_path
from tests.features.web.browser.chromium import FLAGS
from tests.kernel.cli.running import Ran
from tests.needs import needs

pytestmark = [pytest.mark.timeout(600), needs("bwrap", "npm", "node", "chromium")]
_LIMIT_S, _LIMIT_MS = 120.0, 120_000


class Newcomer:
    """A fresh home with Claude Code in it, whose model is scripted, and a small project."""

    def __init__(self, base: Path) -> None:
        self.world = World(base)
        self.programs = base / "bin"
        self.programs.mkdir()
        (self.programs / "claude").symlink_to(PROGRAMS["claude"])
        self.env = {"PATH": f"{self.programs}:{program_path()}"}

    @property
    def project(self) -> Path:
        return self.world.workspace

    def type(self, *words: str) -> Ran:
        return self.world.run(*words, **self.env)

    def start_claude(self, model: ScriptedModel) -> subprocess.Popen[str]:
        env = {
            **self.env,
            "HOME": str(self.world.home),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        }
        return subprocess.Popen(
            ["claude", "-p", "write a note", "--model", "claude-sonnet-4-5"],
            env=env, cwd=self.project, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    if not PROGRAMS["claude"].exists():
        pytest.skip("needs claude: see scripts/get_agents.sh")
    base = Path(tempfile.mkdtemp(prefix="callgate-", dir="/var/tmp"))
    made = Newcomer(base)
    yield made
    made.type("stop", "--now")
    shutil.rmtree(base)


def allow_in_browser(link: str, file: str) -> None:
    """Log in by the link, wait for the question in the inbox, and allow it."""
    found = shutil.which("chromium")
    assert found is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(_LIMIT_MS)
        page.goto(link)
        page.get_by_role("link", name="Inbox").first.click()
        card = page.locator(".question", has_text=file)
        card.get_by_role("button", name="Allow", exact=False).first.click(timeout=_LIMIT_MS)
        expect(card).to_contain_text("allowed", timeout=_LIMIT_MS)
        browser.close()


def test_ten_minutes_of_a_newcomer(newcomer: Newcomer) -> None:
    demo = newcomer.type("demo")
    assert demo.code == 0, demo
    assert "intact: " in demo.out
    assert "[not visible in the sandbox" in demo.out

    protected = newcomer.type("protect", "claude", "--trust", "--no-service")
    assert protected.code == 0, protected
    assert "Claude Code is protected in this directory" in protected.out

    note = newcomer.project / "note.txt"
    step = Step("Write", {"file_path": str(note), "content": "from the agent\n"})
    with serving([step]) as model:
        claude = newcomer.start_claude(model)
        link = newcomer.type("dashboard", "--no-open", "--json").json["url"]
        allow_in_browser(link, "note.txt")
        printed, _ = claude.communicate(timeout=_LIMIT_S)
    assert note.read_text() == "from the agent\n", printed

    undone = newcomer.type("undo", "--last", "--yes")
    assert undone.code == 0, undone
    assert not note.exists()

    authority = Authority(newcomer.world.home / "certificates")
    with serving_packages(newcomer.project, authority) as registry:
        npmrc = f"registry={registry.url}/\ncafile={authority.file}\n"
        (newcomer.world.home / ".npmrc").write_text(npmrc)
        words = ("mcp", "add", "greedy", "--network", "none", "--effect", "read", "--yes")
        added = newcomer.type(*words, "--", "npx", "-y", "greedy-server")
    assert added.code == 0, added
    called = newcomer.type("call", "mcp.greedy/try_all", "--json")
    assert called.code == 0, called
    assert "read workspace" in json.loads(called.json["content"][0]["text"])
    log = (newcomer.world.callgate_home / "audit.jsonl").read_text()
    records = [json.loads(line) for line in log.splitlines()]
    assert {"write_file", "undo", "mcp__greedy__try_all"} <= {each.get("tool") for each in records}
    assert newcomer.type("audit", "verify").code == 0
