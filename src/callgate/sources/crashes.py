"""How often a host died: when it is started again, and when it is given up.

crash --> waits 0.1 s, doubling to 30, with jitter --> 5 within a minute: quarantined
"""

from __future__ import annotations

import random
import time
from collections import deque

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
MOST = 5
WITHIN_S = 60.0


class Crashes:
    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST)
        self._not_before = 0.0
        self.problem: str | None = None
        """What was wrong last."""
        self.quarantined = False

    @property
    def delay_s(self) -> float:
        """How long it is not to be started yet."""
        return max(self._not_before - time.monotonic(), 0.0)

    def give_up(self, problem: str) -> None:
        self.problem = problem
        self.quarantined = True

    def add(self, problem: str) -> None:
        now = time.monotonic()
        self.problem = problem
        self._times.append(now)
        recent = sum(now - at < WITHIN_S for at in self._times)
        if recent >= MOST:
            self.give_up(f"{problem}, for the {MOST}th time within {WITHIN_S:.0f} s")
            return
        delay = min(FIRST_DELAY_S * 2 ** (recent - 1), LONGEST_DELAY_S)
        self._not_before = now + delay * random.uniform(0.8, 1.2)  # noqa: S311
