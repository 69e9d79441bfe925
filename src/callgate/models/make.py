"""From a name to a model. Each adapter is loaded only when a model of its kind is made.

A name is that of a table `[models.NAME]`, or says kind and model at once, which needs no
settings: `anthropic/MODEL`, `openai/MODEL`, `responses/MODEL`, `scripted/PATH`, `local/PATH`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from callgate.core.models import Key, Model, ModelError, ModelErrorKind
from callgate.models.tables import Kind, ModelTable
from callgate.redaction.texts import redact

USUAL_VARIABLES: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "responses": "OPENAI_API_KEY",
}
"""Where the key of a provider usually stands, by kind."""

_BASE_URLS: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "responses": "OPENAI_BASE_URL",
}
_FILES = ("scripted", "local")


def find_table(
    name: str | None, tables: Mapping[str, ModelTable], environ: Mapping[str, str]
) -> tuple[str, ModelTable]:
    """The name of a model and its table. Raises `ModelError` where there is none."""
    if not name:
        raise ModelError(
            ModelErrorKind.REQUEST,
            'No model is named: say model = "NAME" in the settings, or anthropic/MODEL.',
        )
    if name in tables:
        return name, tables[name]
    kind, _, model = name.partition("/")
    if kind not in get_args(Kind) or not model:
        known = ", ".join(sorted(tables)) or "none"
        raise ModelError(
            ModelErrorKind.REQUEST, f"There is no model {redact(name)!r} in the settings ({known})."
        )
    if kind in _FILES:
        return name, ModelTable(kind=cast(Kind, kind), path=model)
    base_url = environ.get(_BASE_URLS[kind]) or None
    if base_url is not None and kind == "anthropic" and not base_url.rstrip("/").endswith("/v1"):
        base_url = base_url.rstrip("/") + "/v1"  # theirs is written without the version
    return name, ModelTable(kind=cast(Kind, kind), model=model, base_url=base_url)


def make_model(name: str, table: ModelTable, key: Key | None = None) -> Model:
    """A model that is ready to be asked. Raises `ModelError` where it cannot be."""
    if table.kind in _FILES:
        if not table.path:
            raise _lacks(name, "path")
    elif not table.model:
        raise _lacks(name, "model")
    elif key is None and table.base_url is None:
        raise ModelError(
            ModelErrorKind.KEY,
            f"There is no key for {name}: set {USUAL_VARIABLES[table.kind]},"
            f" or run: callgate keys set {key_name(name, table)}",
        )
    match table.kind:
        case "anthropic":
            from callgate.models.anthropic import AnthropicModel  # lazy: this kind alone  # noqa: PLC0415

            return AnthropicModel(name, table, key)
        case "openai":
            from callgate.models.openai_chat import OpenAIChatModel  # lazy: this kind alone  # noqa: PLC0415

            return OpenAIChatModel(name, table, key)
        case "responses":
            from callgate.models import openai_responses  # lazy: this kind alone  # noqa: PLC0415

            return openai_responses.OpenAIResponsesModel(name, table, key)
        case "scripted":
            from callgate.models.scripted import ScriptedModel  # lazy: this kind alone  # noqa: PLC0415

            return ScriptedModel(name, table)
        case "local":
            from callgate.models.local import LocalModel  # lazy: this kind alone  # noqa: PLC0415

            return LocalModel(name, table)


def key_name(name: str, table: ModelTable) -> str:
    """Under which name the key of a model is stored."""
    if "/" not in name:
        return name
    return "openai" if table.kind == "responses" else table.kind


def _lacks(name: str, field: str) -> ModelError:
    return ModelError(ModelErrorKind.REQUEST, f"The model {name!r} lacks {field} in the settings.")
