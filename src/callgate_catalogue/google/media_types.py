"""What kind of file a name promises, for those who get it from us. Pure."""

from __future__ import annotations

import mimetypes

UNKNOWN = "application/octet-stream"


def guessed(*names: str) -> str:
    """By the ending of the first that has one which is known. Of `x.tar.gz` a guess is about
    what is inside, and a mail is sent as the bytes it is: both are files like any other."""
    for name in names:
        kind, packed_as = mimetypes.guess_type(name)
        if kind and packed_as is None and not kind.startswith(("message/", "multipart/")):
            return kind
    return UNKNOWN
