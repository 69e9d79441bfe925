"""Which arguments of a call say where its effect goes: recipients, hosts, accounts, ids.

A tool declares them (`destination_params`), the settings may correct that for foreign tools, and
else their names tell. Where no name is known, every text that is not plainly content counts: what
an unknown tool does with it is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from callgate.policy.provenance.forms import address_of, email_in, fold

MOST_VALUES = 64
"""Values of one call that are looked at; a call with more has one that stands nowhere."""

_NAMES = frozenset(
    """to cc bcc recipient recipients receiver receivers email emails mail_to participants attendees
    invitees guests members user users username usernames user_email contact contacts phone
    phone_number channel channels chat room group thread url urls uri uris endpoint webhook link
    links href host hosts hostname domain domains server base_url website site remote iban account
    accounts account_number wallet payee beneficiary destination destinations dest dst target
    targets address addresses id ids repository repo owner team project bucket topic queue device
    command cmd script code sql statement""".split()  # noqa: SIM905
)
_ENDINGS = (  # noqa: SIM905
    "_to _email _emails _mail _recipient _recipients _user _users _channel _url _urls _uri _host "
    "_hostname _domain _endpoint _webhook _iban _account _address _id _ids _destination _target"
).split()
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
_TEXT_ENDINGS = ("_text", "_body", "_content")
_OPTION_ENDINGS = ("_date", "_time", "_day", "_at", "_format")
_OPTION_STARTS = ("start_", "end_", "max_", "min_", "is_", "has_", "include_")


def is_destination_name(name: str) -> bool:
    """Whether the name of a parameter says that it is a destination."""
    folded = _snake(name)
    return folded in _NAMES or folded.endswith(tuple(_ENDINGS))


def destination_params(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The parameters of a tool that say where its effect goes, by their names: those that are
    known, else all that could be one."""
    names: Sequence[str] = tuple(schema.get("properties", {}))
    known = tuple(name for name in names if is_destination_name(name))
    return known or tuple(name for name in names if not _is_content_name(name))


def is_option_name(name: str) -> bool:
    """Whether a parameter only says how, when or how much."""
    folded = _snake(name)
    return (
        folded in _OPTIONS or folded.endswith(_OPTION_ENDINGS) or folded.startswith(_OPTION_STARTS)
    )


def _is_content_name(name: str) -> bool:
    folded = _snake(name)
    return folded in _TEXTS or folded.endswith(_TEXT_ENDINGS) or is_option_name(name)


def _snake(name: str) -> str:
    """`fileId` and `file-id` as `file_id`."""
    spaced = "".join(f"_{char}" if char.isupper() else char for char in name)
    return spaced.lower().replace("-", "_")


def values_of(
    arguments: Mapping[str, Any], names: Sequence[str], most: int = MOST_VALUES
) -> Iterator[tuple[str, str]]:
    """The scalar values of some parameters, also those inside lists and objects, with the name of
    the parameter. At most `most`; for one more, an empty text, which stands nowhere."""
    left = most
    for name in names:
        for value in _scalars(arguments.get(name)):
            left -= 1
            if left < 0:
                yield name, ""
                return
            yield name, value


def _scalars(value: Any) -> Iterator[str]:
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
            case list() | tuple() as items:
                stack.extend(reversed(items))
            case other:
                yield str(other)


def normal_destination(value: str) -> str:
    """The one spelling of a destination to compare and to show: of a URL its host and port, of a
    mail its address."""
    folded = fold(value.strip())
    mail = email_in(folded)
    if mail is not None:
        return mail
    address = address_of(folded)
    if address is not None:
        return f"{address.host}:{address.port}"
    return folded


def remembered(value: str) -> str:
    """The same as answers keep it: a hash, because it may be a secret of the person."""
    normal = normal_destination(value).encode("utf-8", "surrogatepass")
    return blake2b(normal, digest_size=16).hexdigest()
