"""The web tools at a dispatcher, with a say over names and keys."""

from __future__ import annotations

from typing import Any

from callgate.core.models import Key
from callgate.core.sessions import Mode
from callgate.tools.loading import factories
from callgate_catalogue.settings import WebTable
from callgate_catalogue.web.pack import CATALOGUE
from callgate_catalogue.web.reach import Web
from tests.support import Bench


class Names:
    """A look-up that answers from lists, the next one each time, and counts."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(lists) for name, lists in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        known = self.answers.get(host, [[]])
        return known.pop(0) if len(known) > 1 else known[0]


def desk(
    workspace: Any = "/", *, key: str | None = None, resolve: Any = None, mode: Mode = Mode.WRITE, **table: Any
) -> Bench:
    settings = {"timeout_s": 10.0, **table}
    web = Web(WebTable(**settings), lambda: None if key is None else Key(key), resolve or Names())
    return Bench(workspace, *factories(CATALOGUE, web), mode=mode)
