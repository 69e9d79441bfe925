"""Opens a page in the browser of the person at the terminal."""

from __future__ import annotations

import os
import webbrowser

from callgate.sandbox.launch import without_secrets_keys


def open_in_browser(url: str) -> bool:
    """False where there is none. A browser is a process that we start: it gets no such key."""
    ours = dict(os.environ)
    hidden = ours.keys() - without_secrets_keys(ours).keys()
    for name in hidden:
        del os.environ[name]
    try:
        return webbrowser.open(url)
    finally:
        os.environ.update({name: ours[name] for name in hidden})
