"""How many functions some work calls: a cost that no other load on the machine can change."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_function_calls(work: Callable[[], object], repeats: int = 20) -> float:
    """Count the function calls, Python's and C's, of one run of `work`, itself included.

    The garbage collector is off meanwhile: a collection calls finalizers of other tests' objects.
    """
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    work()
    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        for _ in range(repeats):
            work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return (count - 1) / repeats  # the last one is `setprofile` itself
