"""Two machines and a router between them, as network namespaces; the cable can be cut. Needs root.

    database (10.77.1.2) ---- router (10.77.1.1, 10.77.2.1) ---- server (10.77.2.2)

A cut makes the router drop every packet in both directions: nobody is told.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

DATABASE_ADDRESS = "10.77.1.2"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network(NamedTuple):
    database: str
    router: str
    server: str

    def on_server(self) -> list[str]:
        """Before a command: run it on the server's machine."""
        return ["ip", "netns", "exec", self.server]

    def cut(self) -> None:
        self._forward("0")

    def mend(self) -> None:
        self._forward("1")

    def _forward(self, value: str) -> None:
        path = "/proc/sys/net/ipv4/ip_forward"
        subprocess.run(["ip", "netns", "exec", self.router, "sh", "-c", f"echo {value} > {path}"], check=True)

    def delay(self, ms: int) -> bool:
        """Each way; False where the kernel cannot do it."""
        for device in ("to_database", "to_server"):
            words = f"qdisc replace dev {device} root netem delay {ms}ms".split()
            done = subprocess.run(["tc", "-n", self.router, *words], capture_output=True)
            if done.returncode:
                return False
        return True


@contextlib.contextmanager
def network() -> Iterator[Network]:
    made = Network(*(f"cg{os.getpid()}{which}" for which in "drs"))
    try:
        for name in made:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for number, name, peer in ((1, made.database, "to_database"), (2, made.server, "to_server")):
            _ip("-n", made.router, "link", "add", peer, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", made.router, "addr", "add", f"10.77.{number}.1/24", "dev", peer)
            _ip("-n", name, "addr", "add", f"10.77.{number}.2/24", "dev", "eth0")
            _ip("-n", made.router, "link", "set", peer, "up")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "route", "add", "default", "via", f"10.77.{number}.1")
        made.mend()
        yield made
    finally:
        for name in made:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)
