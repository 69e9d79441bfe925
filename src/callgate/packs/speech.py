"""Spoken output: its texts, and the interface of a speaker."""

from callgate.core.content import Speaker as Speaker
from callgate.core.content import Spoken as Spoken
from callgate.sessions.shows import Screen as Screen
from callgate.sessions.shows import Show as Show
