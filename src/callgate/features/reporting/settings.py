"""Settings of reporting: `[notify]` and `[telemetry]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import msgspec

from callgate.config.load import address_problem
from callgate.config.problems import Path
from callgate.config.schema import SettingsPart, Table, TargetName


class NoticeTarget(Table, frozen=True):
    """`[notify.targets.NAME]`: a target for notices."""

    kind: Literal["webhook", "slack", "teams", "email", "command"]
    """`webhook`: plain JSON; `slack`, `teams`: the format of their incoming webhooks."""
    url: str | None = None
    """Address of a webhook."""
    url_env: str | None = None
    """Environment variable with the address, for addresses that are secrets, as with Slack and
    Teams.
    """
    token_env: str | None = None
    """Environment variable with a bearer token for a webhook."""
    command: list[str] = []
    """A program and its arguments. It receives the notice as JSON on stdin and must end within ten
    seconds.
    """
    host: str | None = None
    """Host of the mail server."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    """Port of the mail server; absent: 587, or 465 with `tls`, or 25 with `none`."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """Security of the connection to the mail server; `none` sends no password."""
    user: str | None = None
    """User name at the mail server; absent: the sender."""
    password_env: str | None = None
    """Environment variable with the password."""
    sender: str | None = None
    """Sender address."""
    to: list[str] = []
    """Recipient addresses."""

    def problem(self) -> tuple[str, str] | None:
        """Return the invalid key and the reason, or None."""
        is_http = self.kind in ("webhook", "slack", "teams")
        if is_http and (self.url is None) == (self.url_env is None):
            return "url", "exactly one of url and url_env is needed"
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            return "url", "must be http://HOST or https://HOST"
        if self.kind == "command" and not (self.command and self.command[0]):
            return "command", "must contain a program"
        if self.kind == "email":
            if not self.host:
                return "host", "is needed for e-mail"
            if not self.sender or not self.to:
                return "to", "sender and to are needed for e-mail"
            if not all("@" in each and each.isprintable() for each in (self.sender, *self.to)):
                return "to", "is not a list of mail addresses"
            if self.security == "none" and self.password_env is not None:
                return "password_env", "a password is not sent without tls"
        return None


class NotifyTable(Table, frozen=True):
    """`[notify]`: notices about questions that wait for an answer. An instance sends them."""

    after_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60.0
    """Seconds until a notice of an open question is sent, once."""
    details: bool = False
    """Whether a notice includes the redacted summary of the arguments, and the workspace."""
    link: str | None = None
    """Address of the dashboard; absent: `[instance] public_url`, or the address of the instance."""
    targets: dict[TargetName, NoticeTarget] = {}


class TelemetryTable(Table, frozen=True):
    """`[telemetry]`: spans and metrics of calls, for an OpenTelemetry collector. It needs the
    extra `otel`. The usual `OTEL_*` variables define target and protocol.
    """

    enabled: bool = False
    """Whether spans and metrics are sent."""
    arguments: bool = False
    """Whether spans include the redacted summary of the arguments."""
    flush_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 2.0
    """Seconds for the last transmission when a process ends. The next process sends the rest."""


class ReportingSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "reporting"
    notify: NotifyTable = NotifyTable()
    telemetry: TelemetryTable = TelemetryTable()

    def problems(self) -> Iterator[tuple[Path, str]]:
        for name, target in self.notify.targets.items():
            if (problem := target.problem()) is not None:
                yield ("notify", "targets", name, problem[0]), problem[1]
        if self.notify.link is not None and (wrong := address_problem(self.notify.link)):
            yield ("notify", "link"), wrong
