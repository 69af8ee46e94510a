"""What every launch of a Triton kernel is given, for as long as somebody wants to know.

Enters: whom to tell, before each launch. Leaves: the stand-in for the method that launches; whatever goes wrong in the
telling, the launch happens as it was asked for.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

Tell = Callable[[str, tuple[Any, ...], dict[str, Any]], None]
"""Of a kernel's name, its arguments and its keywords."""


def owner() -> Any:
    """The class whose ``run`` launches; None where Triton is not in use."""
    return getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)


def telling(tell: Tell, original: Any) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("warmup"):
            with contextlib.suppress(Exception):
                tell(str(getattr(self, "__name__", "triton")), args, kwargs)
        return original(self, *args, **kwargs)

    return run
