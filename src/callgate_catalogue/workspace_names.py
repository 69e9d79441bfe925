"""Where a tool keeps what belongs to one workspace: a directory that people recognise."""

from __future__ import annotations

import hashlib
import os
import re

_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


def directory_name(workspace: str) -> str:
    """`NAME-HASH`: two workspaces of one name are two, whatever link leads to them."""
    real = os.path.realpath(workspace)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    name = _OTHER.sub("-", os.path.basename(real)).strip("-.")[:40] or "root"
    return f"{name}-{digest}"
