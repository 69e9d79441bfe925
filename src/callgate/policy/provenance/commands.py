"""The hosts that stand in the words of a command. Pure.

Only what is certain to be a host counts: a URL, an address, `user@host`. A command that runs
because of the hosts in its words reaches no others, so one that is missed here is not reached.
"""

from __future__ import annotations

import re

from callgate.policy.provenance import forms

_REMOTE = re.compile(r"[a-z0-9._-]+@([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::.*)?\Z")


def hosts_in(command: str) -> tuple[str, ...]:
    """Each once, with its port where it is not the usual one."""
    return tuple(dict.fromkeys(addresses_in(command).values()))


def addresses_in(command: str) -> dict[str, str]:
    """What leads to a host, as it is written, and the host."""
    found: dict[str, str] = {}
    for word in forms.tokens(forms.fold(command)):
        for piece in (word, *word.split("=")[1:]):
            remote = _REMOTE.match(piece)
            if "://" in piece:
                address = forms.address_of(piece)
            elif remote is not None:
                address = forms.address_of(f"ssh://{remote[1]}")
            elif piece[:1].isdigit() or piece.startswith(("[", "localhost")):
                address = forms.address_of(piece)
            else:
                address = None
            if address is not None:
                found[piece if remote is None else remote[1]] = _text(address)
    return found


def _text(address: forms.Address) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return host if address.port == forms.WEB else f"{host}:{address.port}"
