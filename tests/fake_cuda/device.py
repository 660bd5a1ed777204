"""A CUDA device that is not there: torch runs its code for CUDA up to the kernels, on tensors without numbers.

`plug_in` changes torch for good, so what uses the device runs in a process of its own (`tests.forked.call`). It shows
which operations run on which device, and where the host would wait. It does not show numbers, time, or which kernel
torch would choose.
"""

from __future__ import annotations

import copy
import os
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bart.cuda import backend
from tests.fake_cuda import kernels
from tests.fake_cuda.guard import COMPILER, IS_POSSIBLE, library

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda", 0)
aten = torch.ops.aten

needs_compiler = pytest.mark.skipif(
    not IS_POSSIBLE,
    reason=f"a CUDA device that is not there needs Linux, a build of torch for CPUs, and the C++ compiler {COMPILER}",
)
# The host reads their results, or the shapes of these depend on numbers.
WAITING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
    aten.equal.default,
}
# They launch nothing.
FREE = {
    *"empty empty_like new_empty empty_strided new_empty_strided detach alias device _unsafe_view lift_fresh".split()
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default}


def plug_in() -> None:
    """Give this process the device; `tests.forked` has loaded its guard before torch."""
    assert library is not None, "the guard was not compiled, or torch was loaded before it"
    library.plug_in()
    from torch.cuda.amp import common

    common.amp_definitely_not_available = lambda: False
    FakeTensorMode.avoid_device_init = property(lambda self: True)
    torch.cuda.is_bf16_supported = lambda *_: True
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.backends.cuda.is_flash_attention_available = lambda: True
    over_stand_ins = kernels.load()
    backend.load_kernels = lambda _: over_stand_ins
    torch.library.impl("aten::_fused_sgd_", "Meta", lambda *_, **__: None)  # which torch lacks
    Tensor.pin_memory = Tensor.clone
    _foreach_utils._foreach_supported_types.append(FakeTensor)  # whose class torch does not know there
    torch.cuda.synchronize = lambda *_: None
    # torch makes these on the CPU and copies them. Inference mode hides that from modes, and fake tensors keep the
    # numbers of small ones, which then need not be read.
    from_numbers = torch.tensor

    def copied(device: Any, numbers: Any, **options: Any) -> Tensor:
        made = from_numbers(numbers, **options)
        if device is None or torch.device(device).type != "cuda":
            return made
        return torch.empty(made.shape, dtype=made.dtype).to(device)

    torch.tensor = lambda data, *, device=None, **options: copied(device, data, **options)
    torch.Tensor.new_tensor = lambda self, data, *, dtype=None, device=None: copied(
        device or self.device, data, dtype=dtype or self.dtype
    )


def fake() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


class Watch(TorchDispatchMode):
    """Notes where the host would wait for a GPU, or where tensors of the CPU come in, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten":  # tensors of inference mode come here before torch has taken operations to pieces
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if (what := self._wait(func, args, kwargs, _tensors(args, kwargs))) is not None:
            self.waits["{} at {} ({})".format(what, *_place())] += 1
        return func(*args, **kwargs)

    def _wait(self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor]) -> str | None:
        name = func.overloadpacket.__name__
        if func in (aten._to_copy.default, aten.copy_.default):
            is_new = func is aten._to_copy.default
            source = args[0] if is_new else args[1]
            to = torch.device((is_new and kwargs.get("device")) or args[0].device).type
            waits = not (kwargs.get("non_blocking") or (args[2:] and args[2]))
            if waits and {source.device.type, to} == {"cpu", "cuda"}:
                return f"a copy from {source.device.type} to {to} of {tuple(source.shape)}"
        elif not any(tensor.is_cuda for tensor in inputs):
            return None
        elif func in WAITING:
            return name
        elif func in INDEXING and args[0].is_cuda:
            for index in args[1]:
                if index is not None and (index.dtype in (torch.bool, torch.uint8) or not index.is_cuda):
                    return f"{name} with an index of {index.dtype} on {index.device.type}"
        elif name != "fill_" and any(not tensor.is_cuda and tensor.dim() == 0 for tensor in inputs):
            return f"{name} with a number on the CPU"
        return None


class Storages(TorchDispatchMode):
    """Notes the memory of tensors, so that what only objects in C++ hold is seen, too."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, made = ({tensor.untyped_storage() for tensor in _tensors(*trees)} for trees in ((args, kwargs), (out,)))
        self._sizes |= {StorageWeakRef(storage): storage.nbytes() for storage in made - given}
        return out

    @property
    def live(self) -> int:
        """The bytes of what was made in this mode and is not free yet."""
        self._sizes = {storage: size for storage, size in self._sizes.items() if not storage.expired()}
        return sum(self._sizes.values())


class Launches(TorchDispatchMode):
    """Counts operations that a GPU would be given: those that make or change tensors of the device and are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, returns = func.overloadpacket.__name__, func._schema.returns
        is_view = bool(returns) and not any(one.alias_info is None or one.alias_info.is_write for one in returns)
        if name not in FREE and not is_view and any(tensor.is_cuda for tensor in _tensors(args, kwargs, out)):
            self.counts[name] += 1
        return out


def _tensors(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, Tensor)]


def _place() -> tuple[str, str]:
    """The innermost function of the project that is running, apart from its tests, and the line.

    Packages are not of the project, though scripts install them inside its folder.
    """
    for frame, line in traceback.walk_stack(None):
        path = os.path.relpath(frame.f_code.co_filename, ROOT)
        if not path.startswith(("..", "tests")) and "site-packages" not in path:
            return frame.f_code.co_name, f"{path}:{line}"
    return "no function", "of the project"


def on_device(module: torch.nn.Module, dtype: torch.dtype | None = None) -> Any:
    """A copy of a module on the device, in a `fake` mode; dtype replaces its float types."""

    def like(tensor: Tensor) -> Tensor:
        own = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=own, device=DEVICE)

    memo: dict[int, Any] = {id(b): like(b) for b in module.buffers()}
    memo |= {id(p): torch.nn.Parameter(like(p), requires_grad=p.requires_grad) for p in module.parameters()}
    return copy.deepcopy(module, memo)
