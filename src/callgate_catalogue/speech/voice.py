"""Program that turns text into a WAV file, with espeak-ng of the `espeakng-loader` wheel.

    python voice.py -v de+f2 -s 175 -p 50 -w speech.wav < text

The library is foreign code in C, so it runs in a separate process, which needs nothing else of
this package. It accepts options of espeak-ng, and exits with 1 if the voice is unknown or the
output fails.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import wave
from importlib import import_module

_RETRIEVE, _DONT_EXIT = 1, 0x8000
_UTF8 = 1  # without SSML and phonemes
_RATE, _PITCH = 1, 3


class _Voice(ctypes.Structure):
    """`espeak_VOICE`, of which callgate sets only the languages."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("xx1", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    ]


_OnSound = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def main() -> int:
    parser = argparse.ArgumentParser(prog="voice")
    parser.add_argument("-v", dest="voice", default="en")
    parser.add_argument("-s", dest="rate", type=int, default=175)
    parser.add_argument("-p", dest="pitch", type=int, default=50)
    parser.add_argument("-w", dest="path", required=True)
    options = parser.parse_args()
    loader = import_module("espeakng_loader")
    library = ctypes.CDLL(loader.get_library_path())
    data = os.fsencode(loader.get_data_path())
    hertz = library.espeak_Initialize(_RETRIEVE, 0, data, _DONT_EXIT)
    if hertz <= 0 or not _choose(library, options.voice):
        return 1
    library.espeak_SetParameter(_RATE, options.rate, 0)
    library.espeak_SetParameter(_PITCH, options.pitch, 0)
    with wave.open(options.path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(hertz)
        return 0 if _synthesise(library, sys.stdin.buffer.read(), file) else 1


def _choose(library: ctypes.CDLL, voice: str) -> bool:
    """Select a voice by name, or else the nearest of its language: de for de-at."""
    if library.espeak_SetVoiceByName(voice.encode()) == 0:
        return True
    wanted = _Voice(languages=voice.partition("+")[0].encode())
    return bool(library.espeak_SetVoiceByProperties(ctypes.byref(wanted)) == 0)


def _synthesise(library: ctypes.CDLL, text: bytes, file: wave.Wave_write) -> bool:
    def collect(samples: ctypes.c_void_p | None, count: int, events: object) -> int:
        if samples and count > 0:
            file.writeframesraw(ctypes.string_at(samples, count * 2))
        return 0

    on_sound = _OnSound(collect)
    library.espeak_SetSynthCallback(on_sound)
    status = library.espeak_Synth(
        text + b"\0", ctypes.c_size_t(len(text) + 1), 0, 0, 0, _UTF8, None, None
    )
    return bool(status == 0 and library.espeak_Synchronize() == 0 and file.tell() > 0)


if __name__ == "__main__":
    sys.exit(main())
