"""Rules, trust and pins that several homes share: what one accepts or denies counts in all of them."""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, Outcome, Scope, ToolErrorClass, tool
from callgate.config.home import Home
from callgate.config.load import load_user
from callgate.config.pins import PinFiles, open_pins
from callgate.config.saved import save_rule
from callgate.config.stores import configured_store
from callgate.config.trust import distrust, is_trusted, trust
from callgate.core.ops import PutEntry
from callgate.features.fleet import mirror as mirrors
from callgate.features.fleet.mirror import RULE, TRUST, Mirror, NotShared
from callgate.sources.pins import PinDoubt, Pinned
from tests.kernel.cli.running import callgate
from tests.kernel.sessions.sites import LIVES, Site
from tests.kernel.storage.processes import child

DENY = {"decision": "deny", "tool": "mark"}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def homes(site: Site) -> tuple[Home, Home]:
    a, b = site.homes
    return Home(str(a)), Home(str(b))


def mirror_of(home: Home) -> Mirror:
    shared = configured_store(home)
    assert shared is not None
    return Mirror(home, shared)


def rules_in(home: Home) -> list[dict[str, Any]]:
    with open(home.saved_rules, "rb") as file:
        return list(tomllib.load(file).get("rules", []))


@asynccontextmanager
async def server(site: Site, home: Path) -> AsyncIterator[Gate]:
    """A gate that follows the shared store, as an instance does."""
    async with site.gate(home) as gate:
        assert gate._wired.sharing is not None
        following = asyncio.create_task(gate._wired.sharing.follow())
        try:
            yield gate
        finally:
            following.cancel()


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> float:
    """Seconds until something holds."""
    began = time.perf_counter()
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)
    return time.perf_counter() - began


async def test_a_deny_rule_saved_at_one_server_counts_at_the_other_at_once(site: Site) -> None:
    a, b = site.homes
    async with server(site, a), server(site, b) as other:
        assert (await other.call("mark", {"n": 0})).ok
        delays = []
        for n in range(3):
            tool = f"mark{n or ''}"
            await asyncio.to_thread(save_rule, Home(str(a)), {"decision": "deny", "tool": tool})
            delays.append(await until(lambda name=tool: f'"{name}"' in (b / "rules.toml").read_text()))  # type: ignore[misc]
        assert min(delays) < 0.1, "within a tenth of a second"
        refused = await other.call("mark", {"n": 1})
        assert refused.error is not None
        assert refused.error.error_class is ToolErrorClass.PERMISSION_DENIED
    assert (a / "rules.toml").read_text() == (b / "rules.toml").read_text()


async def test_servers_that_are_processes_of_their_own_refuse_what_another_denies(site: Site) -> None:
    a, b = site.homes
    async with child("follow", a, site.ws, module=LIVES) as one, child("follow", b, site.ws, module=LIVES) as two:
        for each in (one, two):
            assert await each.hear() == {"ready": True}
            each.tell("call")
            assert await each.hear() == {"ok": True, "error": None}
        await asyncio.to_thread(save_rule, Home(str(a)), DENY)
        await until(lambda: rules_in(Home(str(b))) == [DENY])
        for each in (one, two):
            each.tell("call")
            assert await each.hear() == {"ok": False, "error": "permission_denied"}
        one.process.kill()  # whatever one does, the other goes on
        kept = site.path / "none.toml"
        kept.write_text("")
        words = ("policy", "import", "--replace", str(kept))
        assert callgate(*words, cwd=site.ws, env={"CALLGATE_HOME": str(a)}).code == 0
        await until(lambda: rules_in(Home(str(b))) == [])
        two.tell("call")
        assert await two.hear() == {"ok": True, "error": None}


async def test_an_answer_for_good_is_shared(site: Site) -> None:
    a, b = site.homes

    @tool(side_effects="write")
    async def press(n: int) -> str:
        """Press."""
        return "pressed"

    asked = []

    async def confirm(question: Any) -> Answer:
        asked.append(question)
        return Answer(decision=Outcome.ALLOW, scope=Scope.ALWAYS)

    for home in (a, b):
        async with Gate(workspace=site.ws, tools=[press], home=home, mode="ask", confirm=confirm) as gate:
            assert (await gate.call("press", {"n": 1})).ok
    assert len(asked) == 1, "the second home asked nobody"


def test_rules_are_the_same_toml_in_the_order_in_which_they_were_saved(site: Site, homes: tuple[Home, Home]) -> None:
    a, b = homes
    rules = [{"decision": "allow", "tool": f"t{n}", "path": 'x"\\\x7f.txt'} for n in range(12)]
    rules.append({"decision": "ask", "tool": "t", "arguments": {"a b": "c*"}, "network": ["example.org"]})
    for n, rule in enumerate(rules):
        save_rule((a, b)[n % 2], rule)
    assert mirror_of(a).refresh_now()
    assert rules_in(a) == rules
    exported = callgate("policy", "export", cwd=site.ws, env={"CALLGATE_HOME": b.path})
    assert exported.out == Path(a.saved_rules).read_text()
    assert len(load_user(a)[1].rules) >= len(rules)


def test_trust_given_or_taken_at_one_home_counts_in_all(site: Site, homes: tuple[Home, Home]) -> None:
    a, b = homes
    trust(a, str(site.ws))
    assert mirror_of(b).refresh_now()
    assert is_trusted(a, str(site.ws)) and is_trusted(b, str(site.ws))
    assert distrust(b, str(site.ws))
    assert mirror_of(a).refresh_now()
    assert not is_trusted(a, str(site.ws))


PINNED = Pinned(command=("x",), schemas=[{"name": "t"}])
CHANGED = Pinned(command=("x",), schemas=[{"name": "u"}])


def test_what_is_accepted_of_a_host_at_one_home_counts_in_all(homes: tuple[Home, Home]) -> None:
    pins = [open_pins(home, "hosts", "callgate hosts reload") for home in homes]
    for name in ("zeta", "alpha"):
        pins[0].write_first(name, PINNED)
    pins[1].write_first("zeta", CHANGED)  # who was faster has been believed
    assert pins[1].read("zeta", ("x",)) == PINNED
    assert pins[1].known() == ["zeta", "alpha"]
    pins[1].write("zeta", CHANGED)
    assert mirror_of(homes[0]).refresh_now()
    assert pins[0].read("zeta", ("x",)) == CHANGED
    assert pins[0].known() == ["zeta", "alpha"]
    with pytest.raises(PinDoubt):
        pins[0].read("zeta", ("other",))
    pins[0].forget("alpha")
    assert mirror_of(homes[1]).refresh_now()
    assert pins[1].read("alpha", ("x",)) is None
    assert open_pins(homes[0], "mcp", "callgate mcp approve").known() == []


def test_a_pin_that_was_changed_in_the_files_is_as_the_store_has_it_again(homes: tuple[Home, Home]) -> None:
    a, _ = homes
    pins = open_pins(a, "hosts", "callgate hosts reload")
    pins.write("h", PINNED)
    PinFiles(a.path).write("h", CHANGED)  # file and index agree, and no row does
    assert pins.read("h", ("x",)) == CHANGED
    assert mirror_of(a).edited() != []
    assert mirror_of(a).refresh_now()
    assert pins.read("h", ("x",)) == PINNED


async def test_a_pin_that_cannot_be_read_is_doubted_and_not_new(site: Site, homes: tuple[Home, Home]) -> None:
    a, _ = homes
    async with site.store() as store:
        await store.commit(PutEntry(kind="pin_hosts", name="h", value="[]"))
        await store.commit(PutEntry(kind="pin_hosts", name="../../settings", value='{"at":"","pinned":{}}'))
    assert await asyncio.to_thread(mirror_of(a).refresh_now)
    with pytest.raises(PinDoubt):
        open_pins(a, "hosts", "callgate hosts reload").read("h", ("x",))
    assert "[store]" in Path(a.settings).read_text(), "a name is no path"


def test_hosts_that_a_home_knew_before_it_shared_a_store_are_doubted(site: Site) -> None:
    home = site.home("old")
    PinFiles(str(home)).write("h", PINNED)
    assert mirror_of(Home(str(home))).refresh_now()
    with pytest.raises(PinDoubt):
        open_pins(Home(str(home)), "hosts", "callgate hosts reload").read("h", ("x",))


def test_an_edited_file_is_put_aside_and_what_it_denies_counts_on(
    site: Site, homes: tuple[Home, Home], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = homes
    shared = {"decision": "deny", "tool": "shared"}
    save_rule(a, shared)
    by_hand, wide = {"decision": "deny", "tool": "by_hand"}, {"decision": "allow", "tool": "wide"}
    with open(a.saved_rules, "a") as file:
        for rule in (by_hand, wide):
            file.write("[[rules]]\n" + "".join(f"{key} = '{value}'\n" for key, value in rule.items()))
    assert mirror_of(a).edited() == [a.saved_rules]
    for _ in range(2):
        assert mirror_of(a).refresh_now()
        assert rules_in(a) == [shared, by_hand]
    assert "edited manually" in caplog.text
    aside = Path(a.path) / "rules.edited.toml"
    assert mirror_of(a).edited() == [str(aside)]
    doctor = callgate("doctor", "--json", cwd=site.ws, env={"CALLGATE_HOME": a.path})
    (finding,) = [each for each in doctor.json["checks"] if each["check"] == "shared"]
    assert (finding["level"], "rules.edited.toml" in finding["text"]) == ("note", True)
    ran = callgate("policy", "import", "--json", str(aside), cwd=site.ws, env={"CALLGATE_HOME": a.path})
    assert (ran.json["added"], ran.json["removed"]) == (2, 0)
    assert not aside.exists()
    assert mirror_of(a).edited() == []
    assert mirror_of(b).refresh_now()
    for home in homes:
        assert rules_in(home) == [shared, by_hand, wide]


def test_rules_are_removed_by_importing_the_others(site: Site, homes: tuple[Home, Home]) -> None:
    a, b = homes
    for name in ("one", "two"):
        save_rule(a, {"decision": "deny", "tool": name})
    kept = site.path / "kept.toml"
    kept.write_text('[[rules]]\ndecision = "deny"\ntool = "two"\n[[rules]]\ndecision = "ask"\ntool = "three"\n')
    ran = callgate("policy", "import", "--replace", "--json", str(kept), cwd=site.ws, env={"CALLGATE_HOME": b.path})
    assert (ran.json["added"], ran.json["removed"]) == (1, 1)
    assert [rule["tool"] for rule in rules_in(b)] == ["two", "three"]
    kept.write_text('[[rules]]\ndecision = "perhaps"\n')
    wrong = callgate("policy", "import", str(kept), cwd=site.ws, env={"CALLGATE_HOME": b.path})
    assert (wrong.code, str(kept) in wrong.err) == (2, True)
    assert [rule["tool"] for rule in rules_in(b)] == ["two", "three"]


def test_a_home_without_a_shared_store_imports_and_exports_its_own_rules(tmp_path: Path, home: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    assert callgate("policy", "export", cwd=ws).out == ""
    save_rule(Home(str(home)), DENY)
    given = ws / "more.toml"
    given.write_text(callgate("policy", "export", cwd=ws).out + '[[rules]]\ndecision = "ask"\ntool = "x"\n')
    assert callgate("policy", "import", "--json", str(given), cwd=ws).json["added"] == 1
    assert rules_in(Home(str(home))) == [DENY, {"decision": "ask", "tool": "x"}]
    assert sorted(path.name for path in home.iterdir() if "mirror" in path.name or path.name == "home.id") == []


async def test_a_rule_that_this_version_cannot_read_refuses_effects(site: Site) -> None:
    a, _ = site.homes
    async with site.store() as store:
        await store.commit(PutEntry(kind=RULE, name="01", value='{"new":"shape"}'))
    async with site.gate(a) as gate:
        refused = await gate.call("mark", {"n": 1})
        assert refused.error is not None
        assert refused.error.reason == "settings_invalid"


async def test_without_the_store_the_last_copy_counts_and_without_a_copy_no_effects(site: Site) -> None:
    a, b = site.homes
    save = asyncio.to_thread(save_rule, Home(str(a)), {"decision": "deny", "tool": "think"})
    await save
    (site.store_path / "callgate.db").rename(site.path / "away.db")
    (site.store_path / "callgate.db").mkdir()  # nothing can be opened there
    async with Gate(workspace=site.ws, tools=[], home=a, mode="write") as gate:
        policies = gate._wired.policies
        assert policies.look(str(site.ws)) is None
        assert [rule.decision for rule in policies._user.rules] == [Outcome.DENY]
    async with Gate(workspace=site.ws, tools=[], home=b, mode="write") as gate:
        problem = gate._wired.policies.look(str(site.ws))
        assert problem is not None and "no local copy" in problem.problem
        assert gate._wired.policies(str(site.ws)).refusal is not None
    with pytest.raises(NotShared):
        await asyncio.to_thread(save_rule, Home(str(a)), DENY)
    assert len(rules_in(Home(str(a)))) == 1, "nothing counts that the others do not know"


async def test_processes_that_write_the_files_at_once_end_with_the_newest(site: Site, homes: tuple[Home, Home]) -> None:
    a, b = homes
    await asyncio.gather(
        *(asyncio.to_thread(save_rule, (a, b)[n % 2], {"decision": "deny", "tool": f"t{n}"}) for n in range(12)),
        *(asyncio.to_thread(trust, (a, b)[n % 2], str(site.ws)) for n in range(4)),
    )
    for home in homes:
        assert await asyncio.to_thread(mirror_of(home).refresh_now)
        assert {rule["tool"] for rule in rules_in(home)} == {f"t{n}" for n in range(12)}
        assert mirror_of(home).edited() == [], "what another process wrote is no edit by hand"
    async with site.store() as store:
        assert [json.loads(each.value) for each in await store.entries(TRUST)] == [{}]


def test_every_kind_that_is_shared_wakes_the_mirror() -> None:
    assert set(mirrors.KINDS) == {"rule", "trust", "pin_hosts", "pin_mcp"}
