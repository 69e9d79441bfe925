"""`callgate audit verify` where several homes share a store: it knows how far each chain had come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callgate.audit.records import line_hash
from callgate.audit.verify import KIND, read_heads
from tests.kernel.cli.running import callgate
from tests.kernel.sessions.sites import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def calls_in(site: Site, *homes: Path, count: int = 3) -> None:
    for home in homes:
        async with site.gate(home) as gate:
            for n in range(count):
                assert (await gate.call("mark", {"n": n})).ok
                await gate.call("think", {"n": n + 1})


def verified(site: Site, home: Path, *words: str) -> Any:
    ran = callgate("audit", "verify", "--json", *words, cwd=site.ws, env={"CALLGATE_HOME": str(home)})
    assert ran.code == (0 if ran.json["ok"] else 1)
    return ran.json


def problems(site: Site, home: Path, *words: str) -> list[str]:
    return [each["what"] for each in verified(site, home, *words)["problems"]]


def log_of(home: Path) -> Path:
    return home / "audit.jsonl"


def chain_of(home: Path) -> str:
    return str(json.loads(log_of(home).read_text().splitlines()[-1])["chain"])


async def test_the_logs_of_all_homes_are_whole_and_say_what_the_store_says(site: Site) -> None:
    a, b = site.homes
    await calls_in(site, a, b)
    alone = verified(site, a)
    assert (alone["ok"], alone["records"], alone["calls_in_store"]) == (True, 6, 12)
    assert alone["unchecked_homes"] == [(b / "home.id").read_text().strip()]
    whole = verified(site, a, "--home", str(a), "--home", str(b))
    assert (whole["ok"], whole["records"], whole["calls_in_store"]) == (True, 12, 12)
    assert "unchecked_homes" not in whole
    assert verified(site, b, "--file", str(log_of(a)), "--file", str(log_of(b)))["ok"]


async def test_a_cut_end_is_found_though_nobody_wrote_after_it(site: Site) -> None:
    a, b = site.homes
    await calls_in(site, a, b)
    chain, lines = chain_of(a), log_of(a).read_text().splitlines(keepends=True)
    log_of(a).write_text("".join(lines[:-1]))
    expected = f"chain {chain} ends with record 5, and the store knows 6"
    assert problems(site, a) == [expected]
    assert problems(site, b, "--file", str(log_of(a)), "--file", str(log_of(b))) == [expected]
    call = json.loads(lines[-1])
    both = problems(site, b, "--home", str(a), "--home", str(b))
    assert both == [expected, f"call {call['call_id']} of {call['session']} has no line"]
    assert problems(site, b) == [], "the log of the other home is whole"


async def test_a_log_that_is_gone_or_not_given_is_missed(site: Site) -> None:
    a, b = site.homes
    await calls_in(site, a, b)
    chains, ids = {}, {}
    for home in (a, b):
        chains[home], ids[home] = chain_of(home), (home / "home.id").read_text().strip()
    told = {h: f"no file has chain {chains[h]} of home {ids[h]}; the store knows 6 lines of it" for h in (a, b)}
    assert problems(site, a, "--file", str(log_of(a))) == [told[b]]
    log_of(a).unlink()
    assert problems(site, a) == [told[a]]


async def test_a_line_that_was_written_anew_with_its_hashes_is_found(site: Site) -> None:
    a, _ = site.homes
    await calls_in(site, a)
    *lines, last = log_of(a).read_bytes().splitlines()
    forged = last.replace(b'"tool":"think"', b'"tool":"blink"')
    assert line_hash(forged) != line_hash(last)
    log_of(a).write_bytes(b"\n".join([*lines, forged]) + b"\n")
    assert problems(site, a) == ["record 6 of its chain is another than the store knows"]


async def test_a_log_whose_oldest_files_were_dropped_is_whole(site: Site) -> None:
    a, _ = site.homes
    with (a / "settings.toml").open("a") as settings:
        settings.write("[audit]\nmax_bytes = 4096\nkeep = 1\n")
    for _ in range(6):
        await calls_in(site, a, count=10)
    async with site.store() as store:
        heads = read_heads(await store.entries(KIND))
    assert len(heads) == 6
    ends = [each["chain"] for each in map(json.loads, log_of(a).read_text().splitlines())]
    assert not heads.keys() <= {*ends}, "nothing was dropped: the test proves nothing"
    assert problems(site, a) == []


async def test_a_second_end_by_a_home_that_was_lost_and_came_back_is_reported(site: Site) -> None:
    a, b = site.home("a"), site.home("b", lost_after_minutes=0)
    for role in ("answered", "finished"):
        home = site.home(f"a_{role}")
        await site.die(role, home)
    for _ in range(2):
        await site.look(b)
    homes = [a, b, site.home("a_answered"), site.home("a_finished")]
    for home in homes:
        await site.look(home)
    await calls_in(site, *homes)
    given = [word for home in homes for word in ("--home", str(home))]
    lines = [line for home in homes for line in site.lines(home)]
    calls = [line.call_id for line in lines]
    assert len(calls) == len({*calls}) + 2, "both were written twice: once by their home, once for it"
    outcomes: dict[str, set[str | None]] = {}
    for line in lines:
        outcomes.setdefault(line.call_id, set()).add(line.error_class)
    differing = [call for call, each in outcomes.items() if len(each) > 1]
    assert problems(site, a, *given) == [f"call {each} ended otherwise in the store" for each in differing]
    assert len(differing) == 1


async def test_a_home_that_shares_a_store_says_so_where_its_settings_are_wrong(site: Site) -> None:
    a, _ = site.homes
    await calls_in(site, a)
    (a / "settings.toml").write_text("[store\n")
    for words in (("audit", "verify"), ("sessions", "list")):
        ran = callgate(*words, cwd=site.ws, env={"CALLGATE_HOME": str(a)})
        assert ran.code != 0
        assert "the settings do not show which store to use" in ran.err
