"""Logs in at the emulator and reads, searches and sends mail there, with our own code.

    unshare -n python -m tests.catalogue.google.emulator.visit EMULATOR DIRECTORY

The emulator listens on every interface, so this refuses to start it where there is one that others
reach. What was found is printed as JSON.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import re
import socket
import struct
import subprocess
import sys
import urllib.parse
import urllib.request
from html import unescape
from pathlib import Path
from typing import Any

from callgate.core.sessions import Mode
from callgate_catalogue.google import oauth
from callgate_catalogue.google.accounts import SCOPE, GoogleAccounts, endpoints
from callgate_catalogue.google.pack import GoogleTools
from callgate_catalogue.settings import GoogleTable
from tests.support import Bench

PORT, BACK = 4002, 4180
URL = f"http://127.0.0.1:{PORT}"
CLIENT = oauth.OAuthClient("client-1.apps.example", "emulated-secret-1")
SCOPES = ["openid", "email", f"{SCOPE}gmail.readonly", f"{SCOPE}gmail.send"]
SEED = {
    "google": {
        "users": [{"email": "ann@example.org", "name": "Ann"}],
        "oauth_clients": [
            {
                "client_id": CLIENT.client_id,
                "client_secret": CLIENT.client_secret,
                "redirect_uris": [f"http://127.0.0.1:{BACK}/"],
            }
        ],
        "messages": [
            {
                "id": "msg_1",
                "user_email": "ann@example.org",
                "from": "bob@example.org",
                "to": "ann@example.org",
                "subject": "Welcome",
                "body_text": "Hello Ann.",
                "label_ids": ["INBOX", "UNREAD"],
            }
        ],
    }
}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def only_loopback() -> None:
    """Bring loopback up, in a network where there is nothing else."""
    names = [name for _, name in socket.if_nameindex()]
    if names != ["lo"]:
        sys.exit("this network has others in it")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def choose(address: str) -> None:
    """What a person does on the page: take the only account that is offered."""
    with urllib.request.urlopen(address, timeout=60) as page:
        html = page.read().decode()
    found = re.findall(r'<input[^>]*name="([^"]*)"[^>]*value="([^"]*)"', html)
    form = {unescape(name): unescape(value) for name, value in found}
    data = urllib.parse.urlencode(form).encode()
    urllib.request.urlopen(f"{URL}/o/oauth2/v2/auth/callback", data, timeout=60).close()


async def visit(home: Path, workspace: Path) -> dict[str, Any]:
    table = GoogleTable(
        endpoint=URL,
        auth_endpoint=f"{URL}/o/oauth2/v2/auth",
        token_endpoint=f"{URL}/oauth2/token",
        revoke_endpoint=f"{URL}/oauth2/revoke",
    )
    visits: list[asyncio.Task[None]] = []

    def show(address: str) -> None:
        visits.append(asyncio.get_running_loop().create_task(asyncio.to_thread(choose, address)))

    tokens = await oauth.log_in(endpoints(table), CLIENT, SCOPES, show, port=BACK)
    await asyncio.gather(*visits)
    accounts = GoogleAccounts(str(home), table)
    accounts.put("default", tokens, CLIENT, read_only=False)
    tools = GoogleTools(accounts, URL)
    bench = Bench(workspace, *(factory for _, factory in tools.factories()), mode=Mode.WRITE)
    said: dict[str, Any] = {"email": tokens.email, "scopes": sorted(tokens.scopes)}
    calls = {
        "list": ("gmail_list", {}),
        "read": ("gmail_read", {"messageId": "msg_1"}),
        "none": ("gmail_read", {"messageId": "no-such"}),
        "send": ("gmail_send", {"to": "bob@example.org", "subject": "Grüße", "body": "Schöne Grüße."}),
        "search": ("gmail_search", {"query": "in:sent"}),
    }
    for name, (tool, arguments) in calls.items():
        result = await bench.run(tool, arguments)
        said[name] = result.value if result.ok else {"error": result.error.reason, "text": result.text}
    before = accounts.known().accounts["default"].access_token
    granted = await accounts.token(None, ["gmail.readonly"], writes=False)
    said["renewed"] = (await accounts.renewed(granted)).token != before
    said["after"] = (await bench.run("gmail_read", {"messageId": said["send"]["id"]})).value
    await oauth.revoke(endpoints(table), accounts.known().accounts["default"].refresh_token)
    expired = await bench.run("gmail_list", {})
    try:
        await accounts.renewed(await accounts.token(None, ["gmail.readonly"], writes=False))
    except Exception as error:
        said["revoked"] = getattr(error, "reason", None)
    said["still"] = expired.ok
    await tools.close()
    await bench.log.close()
    return said


def main(emulator: str, directory: str) -> None:
    only_loopback()
    home, workspace = Path(directory, "home"), Path(directory, "ws")
    home.mkdir(mode=0o700)
    workspace.mkdir()
    seed = Path(directory, "seed.json")
    seed.write_text(json.dumps(SEED))
    command = [
        "node",
        f"{emulator}/node_modules/emulate/dist/index.js",
        "--service",
        "google",
        "--port",
        str(PORT),
        "--seed",
        str(seed),
    ]
    with subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:  # it says where it listens, once it does
                if str(PORT).encode() in line:
                    break
            print(json.dumps(asyncio.run(visit(home, workspace))))
        finally:
            server.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
