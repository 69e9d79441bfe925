"""The Google tools of a runtime: known to everyone, offered where an account is logged in."""

from __future__ import annotations

from functools import partial

from callgate import Session
from callgate.packs.tools import Pack, PackContext, PackTool
from callgate_catalogue.google.accounts import GoogleAccounts
from callgate_catalogue.google.catalogue import Spec
from callgate_catalogue.google.tool import GoogleTools


def pack(context: PackContext) -> Pack:
    table = context.settings
    google = GoogleTools(GoogleAccounts(context.home, table), table.endpoint)
    tools = [
        PackTool(factory=factory, why_not=partial(_lacks, google, spec))
        for spec, factory in google.factories()
    ]
    return Pack(tools=tools, close=google.close)


def _lacks(google: GoogleTools, spec: Spec, session: Session) -> str | None:
    return google.why_not(spec)
