"""What every Python process below ``brickprof run`` imports first, because PYTHONPATH says so.

Enters: the environment of a recording (``BRICKPROF_RUN``). Leaves: a process that arms itself when it imports
torch, a ``sys.path`` without this folder, and whatever ``sitecustomize`` this file stood in front of.

There are no functions here and no syntax that an older Python would refuse: any interpreter on the machine
may be started below a training, and none of them may see an error of ours.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_root = os.path.dirname(os.path.dirname(os.path.dirname(_here)))

sys.path[:] = [_entry for _entry in sys.path if _entry != _here]
sys.path_importer_cache.pop(_here, None)

if sys.version_info >= (3, 11) and os.environ.get("BRICKPROF_RUN"):
    _added = _root not in sys.path
    if _added:
        sys.path.append(_root)
    try:
        from brickprof.capture import boot

        boot.begin()
    except Exception:  # a recording that cannot start is no reason to fail
        pass
    if _added and _root in sys.path:
        sys.path.remove(_root)

_real = None
if sys.version_info >= (3, 4):  # noqa: UP036
    import importlib.util

    _mine = sys.modules.pop("sitecustomize", None)
    try:
        _real = importlib.util.find_spec("sitecustomize")
    finally:
        if _mine is not None:
            sys.modules["sitecustomize"] = _mine

if _real is None or _real.loader is None:
    _missing = ImportError("there is no other sitecustomize")
    _missing.name = "sitecustomize"
    raise _missing  # what `site` expects, and passes over, when there is none

_module = importlib.util.module_from_spec(_real)
sys.modules["sitecustomize"] = _module
_real.loader.exec_module(_module)
