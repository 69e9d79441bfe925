"""Runs the command of the settings that prints a key: no shell, a limit, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from callgate.http_client.server_text import UNSEEN
from callgate.redaction.texts import redact
from callgate.sandbox.launch import without_secrets_keys

COMMAND_S = 10.0
_SHOWN = 400
"""Characters of what a command wrote to stderr."""


class KeyCommandError(Exception):
    """Why a command printed no key; never what it printed."""


def run_key_command(command: Sequence[str]) -> str:
    """What the command prints. It is a group of its own, so that nothing of it stays behind."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=without_secrets_keys(os.environ),
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        reason = reason or "it is no command"
        raise KeyCommandError(f"key_command cannot be run: {reason}") from None
    with process:
        try:
            out, complaints = process.communicate(timeout=COMMAND_S)
        except BaseException as error:
            _kill(process)
            if isinstance(error, subprocess.TimeoutExpired):
                message = f"key_command was not done in {COMMAND_S:g} seconds"
                raise KeyCommandError(message) from None
            raise
    if process.returncode != 0:
        reason = UNSEEN.sub(" ", redact(complaints.decode("utf-8", "replace")))
        reason = " ".join(reason.split())[:_SHOWN]
        raise KeyCommandError(
            f"key_command failed ({process.returncode}): {reason or 'it did not say why'}"
        )
    return str(out.decode("utf-8", "replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    # A descendant that left the group may hold the pipes: nobody waits for it.
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
