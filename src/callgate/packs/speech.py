"""What is said aloud, and who makes it heard."""

from callgate.agent.shows import Screen as Screen
from callgate.agent.shows import Show as Show
from callgate.core.messages import Speaker as Speaker
from callgate.core.messages import Spoken as Spoken
