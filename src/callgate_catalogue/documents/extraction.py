"""The text of a file, where there is one in it."""

from __future__ import annotations

from collections.abc import Callable

from callgate import ToolExecutionError
from callgate.packs.files import compile_tokens, parse_wildcards
from callgate_catalogue import pdfs
from callgate_catalogue.web.charsets import decode, media_type
from callgate_catalogue.web.markdown import convert, without_unseen

_WITHOUT_TEXT = frozenset(
    {
        "png",
        "jpg",
        "jpeg",
        "gif",
        "webp",
        "bmp",
        "ico",
        "tif",
        "tiff",
        "heic",
        "psd",
        "mp3",
        "mp4",
        "m4a",
        "wav",
        "flac",
        "ogg",
        "avi",
        "mov",
        "mkv",
        "webm",
        "zip",
        "gz",
        "bz2",
        "xz",
        "zst",
        "7z",
        "rar",
        "tar",
        "jar",
        "war",
        "whl",
        "egg",
        "so",
        "dylib",
        "dll",
        "exe",
        "o",
        "a",
        "lib",
        "pyc",
        "pyo",
        "class",
        "wasm",
        "bin",
        "dat",
        "db",
        "sqlite",
        "sqlite3",
        "ttf",
        "otf",
        "woff",
        "woff2",
        "eot",
        "pack",
        "idx",
        "map",
        "lock",
    }
)
_SECRET = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".netrc",
    ".pgpass",
    ".npmrc",
    ".pypirc",
    "credentials",
    "credentials.*",
    "*.tfstate",
    "*.tfstate.*",
    "htpasswd",
    ".htpasswd",
)
"""A copy of what is in these is kept nowhere."""
_ARE_SECRET = [compile_tokens(parse_wildcards(each)) for each in _SECRET]
_SNIFFED = 8_192
MOST_CHARACTERS = 5_000_000


def is_worth_reading(name: str) -> bool:
    """Whether a file of this name may hold text, and no secret."""
    small = name.lower()
    ending = small.rpartition(".")[2] if "." in small else ""
    if ending in _WITHOUT_TEXT or small.endswith((".min.js", ".min.css")):
        return False
    return not any(matches(small) for matches in _ARE_SECRET)


def keeps_lines(name: str) -> bool:
    """Whether a line of the text is the same line of the file."""
    return not is_pdf(name) and not _is_html(name)


def _is_html(name: str) -> bool:
    return name.lower().endswith((".html", ".htm", ".xhtml"))


def is_pdf(name: str, content: bytes = b"") -> bool:
    return name.lower().endswith(".pdf") or content.startswith(b"%PDF-")


def text_of(
    name: str,
    content: bytes,
    mime_type: str = "",
    should_stop: Callable[[], bool] = lambda: False,
) -> str | None:
    """None where there is no text, or nothing here that could read it."""
    if is_pdf(name, content):
        try:
            return pdfs.read(content, should_stop)
        except ToolExecutionError:
            return None
    if b"\0" in content[:_SNIFFED] and content[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return None
    is_html = _is_html(name) or media_type(mime_type) == "text/html"
    text, _ = decode(content, mime_type or ("text/html" if is_html else ""))
    text = text[:MOST_CHARACTERS]
    if not is_html:
        return without_unseen(text)
    page = convert(text, "", should_stop)
    return f"{page.title}\n\n{page.markdown}".strip()
