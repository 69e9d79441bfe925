"""From settings to who makes vectors for `search`. Loaded by the first search that wants some."""

from __future__ import annotations

import os

from callgate.config.home import Home
from callgate.config.keys import find_key
from callgate.core.models import ModelError, ModelErrorKind
from callgate.models.embeddings import Embeddings
from callgate.models.make import USUAL_VARIABLES
from callgate.models.openai_chat import BASE_URL
from callgate.models.tables import ModelTable
from callgate.tools.tables import EmbeddingsTable

NAME = "embeddings"
"""Under which `callgate keys set` stores its key."""
_RETRIES = 2
"""A person waits for the search, which can do without it."""


def open_embedder(home: Home, table: EmbeddingsTable) -> Embeddings:
    """Raises `ModelError` where the key or the address cannot be used."""
    endpoint = table.endpoint.rstrip("/")
    model = ModelTable(
        kind="openai",
        model=table.model,
        # OpenAI's usual variable is for OpenAI alone, which is what no address means here.
        base_url=None if endpoint == BASE_URL else endpoint,
        insecure_http=table.insecure_http,
        key_env=table.key_env,
        key_command=table.key_command,
        timeout_s=table.timeout_s,
        total_timeout_s=table.refresh_s,
        retries=_RETRIES,
    )
    key = find_key(NAME, model, home, os.environ)
    if key is None and model.base_url is None:
        raise ModelError(
            ModelErrorKind.KEY,
            f"There is no key for embeddings: set {USUAL_VARIABLES[model.kind]},"
            f" or run: callgate keys set {NAME}",
        )
    return Embeddings(model, key)
