"""From settings to the Google tools of the catalogue. Loaded once one of them is looked at."""

from __future__ import annotations

from functools import partial

from callgate.config.google import GoogleAccounts
from callgate.config.places import Home
from callgate.config.schema import Settings
from callgate.core.sessions import Session
from callgate.runtime import Runtime
from callgate.tools.google.catalogue import Spec
from callgate.tools.google.tool import GoogleTools


def register_google(runtime: Runtime, home: Home, settings: Settings) -> GoogleTools:
    """Known to everyone, and offered where an account is logged in."""
    table = settings.google
    google = GoogleTools(GoogleAccounts(home, table), table.endpoint)
    for spec, factory in google.factories():
        runtime.register(factory)
        why_not = partial(_lacks, google, spec)
        runtime.dispatcher.registry.offer_where(spec.definition.name, why_not)
    return google


def _lacks(google: GoogleTools, spec: Spec, session: Session) -> str | None:
    return google.why_not(spec)
