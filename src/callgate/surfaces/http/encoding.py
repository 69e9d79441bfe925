"""Any value of ours as JSON, whatever a tool put into it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(enc_hook=repr).encode


def encode(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:  # a lone surrogate is written as the escape that it came from
        plain = msgspec.to_builtins(value, enc_hook=repr, str_keys=True)
        return json.dumps(plain, separators=(",", ":")).encode()
