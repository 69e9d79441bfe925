"""From a name to a model, with settings and without."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from callgate.core.http import back_off
from callgate.core.models import Key, ModelError, ModelErrorKind, Price, Usage
from callgate.features.chat.models.make import find_table, make_model
from callgate.features.chat.settings import ModelTable, PriceTable

FAST = ModelTable(kind="openai", model="x", base_url="http://localhost:1/v1")


@pytest.mark.parametrize(
    ("name", "environ", "table"),
    [
        ("fast", {}, FAST),
        ("anthropic/claude-x", {}, ModelTable(kind="anthropic", model="claude-x")),
        ("openai/org/model:7b", {}, ModelTable(kind="openai", model="org/model:7b")),
        (
            "openai/m",
            {"OPENAI_BASE_URL": "http://localhost:2/v1"},
            ModelTable(kind="openai", model="m", base_url="http://localhost:2/v1"),
        ),
        (
            "responses/m",
            {"OPENAI_BASE_URL": "http://localhost:2/v1"},
            ModelTable(kind="responses", model="m", base_url="http://localhost:2/v1"),
        ),
        (
            "anthropic/m",
            {"ANTHROPIC_BASE_URL": "http://localhost:2"},
            ModelTable(kind="anthropic", model="m", base_url="http://localhost:2/v1"),
        ),
        ("scripted/a/b.toml", {}, ModelTable(kind="scripted", path="a/b.toml")),
        ("local/~/x.gguf", {}, ModelTable(kind="local", path="~/x.gguf")),
    ],
)
def test_a_name_has_a_table(name: str, environ: dict[str, str], table: ModelTable) -> None:
    assert find_table(name, {"fast": FAST}, environ) == (name, table)


@pytest.mark.parametrize("name", [None, "", "slow", "anthropic/", "/x", "unknown/x", "anthropic"])
def test_a_name_that_means_nothing_is_an_error(name: str | None) -> None:
    with pytest.raises(ModelError) as caught:
        find_table(name, {"fast": FAST}, {})
    assert caught.value.kind is ModelErrorKind.REQUEST


@pytest.mark.parametrize("kind", ["anthropic", "openai", "responses"])
def test_a_provider_wants_a_key_and_a_server_of_your_own_does_not(kind: Any) -> None:
    with pytest.raises(ModelError) as caught:
        make_model("m", ModelTable(kind=kind, model="x"))
    assert caught.value.kind is ModelErrorKind.KEY
    model = make_model(
        "m", ModelTable(kind=kind, model="x", base_url="http://localhost:1", tools="text", price=PriceTable(input=1))
    )
    assert (model.name, model.native_tools, model.price) == ("m", False, PriceTable(input=1))
    assert make_model("m", ModelTable(kind=kind, model="x"), Key("abcdef")).context_tokens > 100_000


@pytest.mark.parametrize(
    "table",
    [ModelTable(kind="openai", base_url="http://localhost:1"), ModelTable(kind="scripted"), ModelTable(kind="local")],
)
def test_what_a_kind_needs_must_be_there(table: ModelTable) -> None:
    with pytest.raises(ModelError) as caught:
        make_model("m", table)
    assert caught.value.kind is ModelErrorKind.REQUEST


def test_the_client_is_loaded_only_with_a_model_that_needs_it() -> None:
    code = "import sys, callgate.features.chat.models.make, callgate.config.schema\nprint([m for m in sys.modules if m.split('.')[0] in ('httpx2', 'anyio', 'httpcore2')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_waits_grow_and_are_never_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.core.http.FIRST_WAIT_S", 0.5)
    assert [back_off(n, 0.5) for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 16, 16]
    assert (back_off(1, 0.0), back_off(1, 1.0)) == (0.375, 0.625)


def test_a_price_counts_what_the_cache_spared() -> None:
    usage = Usage(input=1_000_000, output=1_000_000, cache_read=500_000, cache_write=100_000)
    price = Price(input=10, output=20, cache_read=1, cache_write=12.5)
    assert price.of(usage) == 4 + 0.5 + 1.25 + 20
    assert Price(input=10, output=20).of(usage) == 30
