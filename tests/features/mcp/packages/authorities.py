"""A private certificate authority, and a proxy that knows a host which nobody else does."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "registry.test"
"""No name server knows it."""


class Authority:
    """A certificate authority with one certificate, for this machine and for `HOST`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.file = directory / "authority.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "callgate test authority")])
        root = _certificate(name, name, key.public_key())
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        made = (
            root.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(usage, True)
            .add_extension(identifier, False)
            .sign(key, hashes.SHA256())
        )
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        own = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
            x509.DNSName(HOST),
        ]
        leaf = (
            _certificate(x509.Name([]), name, own.public_key())
            .add_extension(x509.SubjectAlternativeName(names), True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False)
            .sign(key, hashes.SHA256())
        )
        chain = directory / "chain.pem"
        form, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
        secret = own.private_bytes(encoding, form, serialization.NoEncryption())
        chain.write_bytes(secret + leaf.public_bytes(encoding) + self.file.read_bytes())
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(chain)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


class Proxy:
    """What it was asked for, and with which user and password."""

    def __init__(self, credentials: str | None) -> None:
        self.port = 0
        self.connected: list[str] = []
        self._credentials = credentials

    def admits(self, head: bytes) -> bool:
        if self._credentials is None:
            return True
        wanted = base64.b64encode(self._credentials.encode())
        return b"proxy-authorization: basic " + wanted.lower() in head.lower()


@contextmanager
def proxying(credentials: str | None = None) -> Iterator[Proxy]:
    """A proxy for CONNECT that leads every host to this machine."""
    proxy = Proxy(credentials)
    loop, listening, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target = head.decode().split()[:2]
        if not proxy.admits(head) or method != "CONNECT":
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n")
            writer.write(b'proxy-authenticate: Basic realm="x"\r\nconnection: close\r\n\r\n')
            writer.close()
            return
        proxy.connected.append(target)
        inner = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pipe(reader, inner[1]), pipe(inner[0], writer))

    async def serve() -> None:
        async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
            proxy.port = server.sockets[0].getsockname()[1]
            listening.set()
            await stop.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert listening.wait(20)
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
