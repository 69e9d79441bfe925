"""The hosts that one command may reach: listed hosts, and hosts approved while it runs.

    connection -> listed or approved before? --yes--> it may connect
                       | no
                       v
                  one question for each host; later connections wait for the same answer

A refusal counts for the rest of the run, because clients retry. An approval counts as long,
unless it is for one connection only. Then it covers the connections that wait for it, or the next
one if none waits any more.

A name is not looked up before its approval, because the lookup reveals the name to a server.
"""

from __future__ import annotations

import asyncio
import ipaddress

import msgspec

from callgate.core.commands import Approve, Connection, ConnectionVerdict
from callgate.core.tasks import start_task
from callgate.sandbox import allowed_hosts
from callgate.sandbox.allowed_hosts import DEFAULT_PORTS, AllowedHost

MOST_WAITING = 256
"""Maximum connections of one command that wait for approval; more are refused."""
_MOST_QUESTIONS = 8
"""Maximum concurrent questions about one command; others wait."""
_MOST_NAMED = 50


class Unapproved(Exception):
    """The host must not be contacted. The message has the reason, for a person and the command."""


class _Pending(msgspec.Struct, eq=False):
    task: asyncio.Task[ConnectionVerdict]
    waiting: int = 0


class HostApprovals:
    def __init__(self, hosts: tuple[AllowedHost, ...], approve: Approve | None = None) -> None:
        self._hosts = hosts
        self._approve = approve
        self._pending: dict[str, _Pending] = {}
        self._verdicts: dict[str, ConnectionVerdict] = {}
        """Refusals, and unused approvals for one connection."""
        self._turns = asyncio.Semaphore(_MOST_QUESTIONS)
        self._blocked: dict[str, None] = {}
        self._refusals: dict[str, None] = {}
        self._approved: dict[str, None] = {}

    @property
    def blocked(self) -> tuple[str, ...]:
        """`host:port` of the first refused connections, each once."""
        return tuple(self._blocked)

    @property
    def refusals(self) -> tuple[str, ...]:
        """The first refused questions, each with its host."""
        return tuple(self._refusals)

    @property
    def approved(self) -> tuple[str, ...]:
        """The first hosts that were approved while the command ran."""
        return tuple(self._approved)

    @property
    def asks(self) -> bool:
        """Whether unlisted hosts can be approved."""
        return self._approve is not None

    def covers(self, host: str, port: int) -> bool:
        """Whether a host needs no approval."""
        return bool(allowed_hosts.find(self._hosts, host, port))

    def permits(self, host: str, port: int, address: str) -> bool:
        """Whether a host needs no approval for a connection to one of its addresses."""
        entries = allowed_hosts.find(self._hosts, host, port)
        return any(entry.permits(address) for entry in entries)

    async def entries(
        self, host: str, port: int, program: str | None = None
    ) -> tuple[AllowedHost, ...]:
        """Return the entries that cover a host. An unlisted host needs approval. Raises
        `Unapproved`."""
        found = allowed_hosts.find(self._hosts, host, port)
        return found or (await self._wait(_entry(host, port), host, port, None, program),)

    async def private(
        self, host: str, port: int, address: str, program: str | None = None
    ) -> AllowedHost:
        """Return the entry of a name with only private addresses, after its approval. Raises
        `Unapproved`."""
        if self._approve is None or not allowed_hosts.is_private(address):
            raise self._refused(host, port, "has no public address; private: would be needed")
        entry = msgspec.structs.replace(_entry(host, port), private=True)
        return await self._wait(entry, host, port, address, program)

    def mismatch(self, host: str, port: int, name: str | None) -> Unapproved:
        """Return the refusal of a connection whose TLS server name is another host."""
        self._block(host, port)
        named = f"names {name!r}" if name else "cannot be read"
        return Unapproved(f"blocked: {_authority(host, port)}: TLS in this tunnel {named}")

    def refuse_service(self, address: bytes, port: int) -> None:
        """Note a refused connection to a service of this machine."""
        number = ipaddress.IPv6Address(address)
        self._block(str(number.ipv4_mapped or number), port)

    def close(self) -> None:
        """Withdraw the pending questions."""
        for pending in self._pending.values():
            pending.task.cancel()

    async def _wait(
        self, entry: AllowedHost, host: str, port: int, address: str | None, program: str | None
    ) -> AllowedHost:
        if self._approve is None:
            problem = "is not among the hosts that this command may reach"
            raise self._refused(host, port, problem)
        key = str(entry)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._answer(self._approve, entry, port, address, program)
        elif not verdict.refusal:
            del self._verdicts[key]
        if verdict.refusal:
            self._block(host, port)
            raise Unapproved(f"blocked: {key}: {verdict.refusal}")
        return entry

    async def _answer(
        self,
        approve: Approve,
        entry: AllowedHost,
        port: int,
        address: str | None,
        program: str | None,
    ) -> ConnectionVerdict:
        """Wait for the answer about a host; connections to the same host share it."""
        key = str(entry)
        if sum(each.waiting for each in self._pending.values()) >= MOST_WAITING:
            raise Unapproved(f"blocked: {key}: too many connections wait for approval")
        pending = self._pending.get(key)
        if pending is None:
            connection = Connection(entry=key, port=port, address=address, program=program)
            task = start_task(self._question(approve, connection, entry))
            pending = self._pending[key] = _Pending(task)
        pending.waiting += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.waiting -= 1

    async def _question(
        self, approve: Approve, connection: Connection, entry: AllowedHost
    ) -> ConnectionVerdict:
        key = connection.entry
        try:
            async with self._turns:
                verdict = await approve(connection)
            if verdict.refusal:
                self._verdicts[key] = verdict
                if len(self._refusals) < _MOST_NAMED:
                    self._refusals[f"{key}: {verdict.refusal}"] = None
                return verdict
            if len(self._approved) < _MOST_NAMED:
                self._approved[key] = None
            if not verdict.once:
                self._hosts = (*self._hosts, entry)
            elif not self._pending[key].waiting:
                self._verdicts[key] = verdict
            return verdict
        finally:
            del self._pending[key]

    def _refused(self, host: str, port: int, why: str) -> Unapproved:
        self._block(host, port)
        return Unapproved(
            f"blocked: {_authority(host, port)} {why}. To allow it, name it in `network`, "
            "in [sandbox] or in a rule of settings.toml."
        )

    def _block(self, host: str, port: int) -> None:
        if len(self._blocked) < _MOST_NAMED:
            self._blocked[_authority(host, port)] = None


def _entry(host: str, port: int) -> AllowedHost:
    return AllowedHost(host, DEFAULT_PORTS if port in DEFAULT_PORTS else (port,))


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
