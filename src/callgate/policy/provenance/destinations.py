"""Arguments that determine where the effect of a call goes: recipients, hosts, accounts, ids.

A tool declares them (`destination_params`), and the settings may correct that for foreign tools.
Without a declaration the names of the arguments decide. If no name is known, every text that is not
clearly content counts, because the tool may use it in any way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any

from callgate.core.tools import QUERY_PARAMETERS
from callgate.policy.provenance.forms import WEB, address_of, email_in, fold

MOST_VALUES = 64
"""Maximum values of one call that are examined; a call with more gets one without a source."""

_NAMES = frozenset(
    """to cc bcc recipient recipients receiver receivers email emails mail_to participants attendees
    invitees guests members user users username usernames user_email contact contacts phone
    phone_number channel channels chat room group thread url urls uri uris endpoint webhook link
    links href host hosts hostname domain domains server base_url website site remote iban account
    accounts account_number wallet payee beneficiary destination destinations dest dst target
    targets address addresses id ids repository repo owner team project bucket topic queue device
    command cmd script code sql statement""".split()  # noqa: SIM905
)
_ENDINGS = tuple(
    """_to _cc _bcc _email _emails _mail _recipient _recipients _user _users _channel _channels _url
    _urls _uri _host _hosts _hostname _domain _domains _endpoint _webhook _iban _account _accounts
    _address _addresses _phone _groups _members _id _ids _destination _target""".split()  # noqa: SIM905
)
_TEXTS = frozenset(
    """body text content contents message subject title description comment comments note notes
    summary caption html markdown data payload attachments file_content headers reason""".split()  # noqa: SIM905
)
_OPTIONS = frozenset(
    """amount price quantity count size date time day start end duration recurring repeat limit
    offset page n max max_results query q search filter sort order format language lang encoding
    priority status visibility permission mode timezone method timeout timeout_s emoji color tags
    labels rating""".split()  # noqa: SIM905
)
_COMMANDS = frozenset({"command", "cmd", "script", "code", "sql", "statement"})
_OBJECTS = frozenset(
    """path paths file files filename folder directory key name table branch collection""".split()  # noqa: SIM905
)
"""Names of objects that a destructive tool acts on."""
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MOST_NESTED = 256
_TEXT_ENDINGS = ("_text", "_body", "_content")
_OPTION_ENDINGS = ("_date", "_time", "_day", "_at", "_format")
_OPTION_STARTS = ("start_", "end_", "max_", "min_", "is_", "has_", "include_")


@lru_cache(maxsize=4096)
def is_destination_name(name: str) -> bool:
    """Whether the name of a parameter indicates a destination."""
    folded = _snake(name)
    return folded in _NAMES or folded.endswith(_ENDINGS)


def destination_params(names: Iterable[str], *, destructive: bool = False) -> tuple[str, ...]:
    """Return the parameters with the destination or target of a tool's effect, by their names.

    If no name is known, return all parameters that could be one.
    """
    every = tuple(names)
    known = tuple(
        name
        for name in every
        if is_destination_name(name) or (destructive and _snake(name) in _OBJECTS)
    )
    return known or tuple(name for name in every if not _is_content_name(name))


@lru_cache(maxsize=4096)
def is_option_name(name: str) -> bool:
    """Whether a parameter only determines how, when or how much."""
    folded = _snake(name)
    return (
        folded in _OPTIONS or folded.endswith(_OPTION_ENDINGS) or folded.startswith(_OPTION_STARTS)
    )


@lru_cache(maxsize=4096)
def _is_content_name(name: str) -> bool:
    folded = _snake(name)
    return folded in _TEXTS or folded.endswith(_TEXT_ENDINGS) or is_option_name(name)


@lru_cache(maxsize=4096)
def is_command_name(name: str) -> bool:
    """Whether the value of a parameter is executed unchanged."""
    return _snake(name) in _COMMANDS


def may_be_destination(name: str) -> bool:
    """Whether a parameter with an unknown name is neither a text nor an option."""
    return not _is_content_name(name)


def queries_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts of search and query parameters."""
    for name, value in arguments.items():
        if _snake(name) in QUERY_PARAMETERS and isinstance(value, str):
            yield name, value


def _snake(name: str) -> str:
    """Convert `fileId`, `file-id` and `FileID` to `file_id`."""
    return _HUMPS.sub("_", name).lower().replace("-", "_").strip("_")


def values_of(
    arguments: Mapping[str, Any], names: Sequence[str], most: int = MOST_VALUES
) -> Iterator[tuple[str, str]]:
    """Yield the scalar values of some parameters, each with the name of its parameter.

    Includes values in lists and objects, keys of objects, and each mail address of a list in one
    text. After `most` values, yields one empty text, which has no source.
    """
    left = most
    for name in names:
        for text in _scalars(arguments.get(name), keys=True):
            for value in (text,) if is_command_name(name) else _addressees(text):
                left -= 1
                if left < 0:
                    yield name, ""
                    return
                yield name, value


def nested_names(arguments: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return destinations inside objects and lists of other parameters, by name: `message.to`."""
    found: dict[str, Any] = {}
    stack = [(name, value) for name, value in arguments.items() if name not in known]
    for _ in range(_MOST_NESTED):
        if not stack:
            break
        name, value = stack.pop()
        if isinstance(value, Mapping):
            for key, inner in islice(value.items(), _MOST_NESTED):
                path = f"{name}.{key}"
                if is_destination_name(str(key)):
                    found[path] = inner
                else:
                    stack.append((path, inner))
        elif isinstance(value, list | tuple):
            stack.extend((name, item) for item in value[:_MOST_NESTED])
    return found


def texts_of(arguments: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the texts of content parameters, unchanged; excess texts are joined into one."""
    found = ((name, text) for name in names for text in _scalars(arguments.get(name)))
    yield from islice(found, MOST_VALUES)
    remainder = [text for _, text in found]
    if remainder:
        yield names[-1], "\n".join(remainder)


def _scalars(value: Any, *, keys: bool = False) -> Iterator[str]:
    stack = [value]
    while stack:
        match stack.pop():
            case None | bool():
                pass
            case str() as text:
                if text.strip():
                    yield text
            case int() | float() as number:
                yield str(number)
            case Mapping() as entries:
                stack.extend(reversed(list(entries.values())))
                if keys:  # `{"eve@evil.example": true}`; `{"address": ...}` is a field
                    stack.extend(
                        str(key)
                        for key, inner in entries.items()
                        if inner is None or isinstance(inner, bool) or not str(key).isidentifier()
                    )
            case list() | tuple() as items:
                stack.extend(reversed(items))
            case other:
                yield str(other)


def _addressees(text: str) -> Iterator[str]:
    """Yield the addresses of a pure address list (`Ann <a@x.example>, b@x.org`), or the text."""
    if "@" in text and any(mark in text for mark in ",;<"):
        items = [item.strip() for item in text.replace(";", ",").split(",") if item.strip()]
        found = [_addressee(fold(item)) for item in items]
        if found and None not in found:
            yield from (each for each in found if each is not None)
            return
    yield text


def _addressee(item: str) -> str | None:
    """Return the address of `a@x.example` or `Ann Lee <a@x.example>`; None for other text."""
    name, bracket, remainder = item.partition("<")
    if not bracket:
        return email_in(item)
    if not remainder.endswith(">") or not all(
        part.isalnum() for part in name.replace('"', "").split()
    ):
        return None
    return email_in(remainder[:-1])


def normal_destination(value: str) -> str:
    """Normalize a destination for comparison: a URL to host and port, a mailbox to its address."""
    address = address_of(fold(value.strip()))
    return exact_destination(value) if address is None else f"{address.host}:{address.port}"


def exact_destination(value: str) -> str:
    """Normalize a destination for display and answers; a URL keeps its path and query."""
    folded = fold(value.strip())
    mail = email_in(folded)
    address = None if mail is not None else address_of(value.strip())
    if address is None:
        return mail or folded
    port = "" if address.port == WEB else f":{address.port}"
    user = f"{address.user}@" if address.user else ""
    return f"{user}{address.host}{port}{address.page or '/'}"


def remembered(value: str) -> str:
    """Return the hash of a destination for remembered answers, because it may be confidential."""
    normal = exact_destination(value).encode("utf-8", "surrogatepass")
    return blake2b(normal, digest_size=16).hexdigest()
