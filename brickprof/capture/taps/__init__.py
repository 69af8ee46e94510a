"""Further patches of torch, one family a file; ``brickprof.capture.patches`` installs them and puts all back.

Enters: ``replace(owner, name, make)``. Leaves: signals and facts to ``brickprof.capture.hub``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Replace = Callable[[Any, str, Callable[[Any], Any]], None]
