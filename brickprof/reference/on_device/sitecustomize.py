"""The scripts of the zoo on a GPU, though they name none: with this folder on PYTHONPATH, what they make moves there.

    brickprof zoo --on-gpu

Enters: a process that imports torch on a machine with CUDA. Leaves: every tensor that its own code or a layer makes is
made on the host, as before, so that the numbers stay the same, and then lies on the GPU. What torch's optimizers,
loaders and scalers keep for themselves stays where it is; so does what brickprof and its reference loop make.
"""

from __future__ import annotations

import re
import sys
from importlib.abc import MetaPathFinder
from typing import Any

_MAKERS = (
    "arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace", "logspace", "normal", "ones", "rand",
    "randint", "randn", "randperm", "tensor", "tril_indices", "triu_indices", "zeros",
)  # fmt: skip
_NOT_THE_SCRIPT = re.compile(
    r"/torch/(optim|utils|amp|autograd|distributed|_\w*)/|/torch/(serialization|random|storage|_\w*)\.py"
    r"|/brickprof/(capture|reference)/\w+\.py|/probes/\w+\.py"
)


def _begin(torch: Any) -> None:
    from torch.nn.utils import rnn
    from torch.overrides import TorchFunctionMode
    from torch.utils.data import dataloader

    makers = {getattr(torch, name) for name in _MAKERS}

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not value.is_cuda and not value.is_sparse:
            return value.detach().cuda().requires_grad_(value.requires_grad)
        return value

    def hosted(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    def wanted(asked: Any) -> bool:
        """Whether the script makes this, or one of its layers, and says nothing of a device."""
        if asked is not None or torch.utils.data.get_worker_info() or torch.cuda._is_in_bad_fork():
            return False
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.endswith(("torch/overrides.py", "sitecustomize.py")):
            frame = frame.f_back
        return frame is not None and not _NOT_THE_SCRIPT.search(frame.f_code.co_filename)

    class OnDevice(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in makers:
                value = func(*args, **kwargs)
                return moved(value) if wanted(kwargs.get("device")) else value
            drawn = kwargs.get("generator")
            if drawn is not None and drawn.device.type == "cpu" and getattr(next(iter(args), None), "is_cuda", False):
                value = func(*map(hosted, args), **kwargs)
                return args[0].copy_(value) if func.__name__.endswith("_") else moved(value)
            if func in (torch.Tensor.numpy, torch.Tensor.__array__):
                args = tuple(map(hosted, args))
            return func(*args, **kwargs)

    # What a function mode calls is called by torch: no line of this file is a line of the script.
    body = OnDevice.__torch_function__
    body.__code__ = body.__code__.replace(co_filename=sys.modules[TorchFunctionMode.__module__].__file__ or "")
    packing, following = rnn.pack_padded_sequence, dataloader._BaseDataLoaderIter.__next__

    def pack_padded_sequence(input: Any, lengths: Any, *args: Any, **kwargs: Any) -> Any:
        return packing(input, hosted(lengths), *args, **kwargs)

    def __next__(self: Any) -> Any:
        return torch.utils._pytree.tree_map(moved, following(self))

    rnn.pack_padded_sequence = pack_padded_sequence
    dataloader._BaseDataLoaderIter.__next__ = __next__  # type: ignore[method-assign]
    OnDevice().__enter__()  # type: ignore[no-untyped-call]


class _Finder(MetaPathFinder):
    """Waits for torch."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec

        spec = find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if module.cuda.is_available():
                _begin(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
