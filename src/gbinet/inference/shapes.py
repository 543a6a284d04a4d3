"""Tensors that only seem to lie on a device, with nothing in them: to learn what a network launches.

As torch's own FakeTensorMode, which imports torch's compiler first, and that takes seconds. Here the few
operations beside the kernels are carried out on the CPU, on memory that nobody has filled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only


class EmptyTensor(torch.Tensor):
    """Seems to lie on a device, and lies on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> EmptyTensor:
        made: EmptyTensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=device,
        )  # fmt: skip
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func}: there is nothing in this tensor outside `with ShapesOnly(device)`")


class ShapesOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, nothing is computed on a device, and nothing is allocated there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = _numbered(device)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler to tell it to look away, for two seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        given = [t for t in tree_flatten((args, options))[0] if isinstance(t, Tensor)]
        asked = None if options.get("device") is None else _numbered(torch.device(options["device"]))
        if not self._concerns(given, asked):
            return func(*args, **options)
        if func is torch.ops.aten.record_stream.default:  # nobody will use the memory
            return None
        stand_ins = {id(t): t.held if isinstance(t, EmptyTensor) else _like(t) for t in given}
        back = {id(stand_ins[id(t)]): t for t in given}
        args, options = tree_map_only(Tensor, lambda t: stand_ins[id(t)], (args, options))
        if asked is not None:
            options = {**options, "device": torch.device("cpu")}
        result = func(*args, **options)
        seen = {t.device.type: t.device for t in given}
        where = asked or seen.get(self.device.type) or next(iter(seen.values()), self.device)
        # What was written to in place, or comes back as it was, is the caller's own.
        return tree_map_only(
            Tensor, lambda t: back[id(t)] if id(t) in back else EmptyTensor(t, where), result
        )

    def _concerns(self, given: list[Tensor], asked: torch.device | None) -> bool:
        """Whether an operation reads from the device or writes to it."""
        if any(isinstance(t, EmptyTensor) or t.device.type == self.device.type for t in given):
            return True
        wanted = asked or (None if given else torch.device("cpu"))
        return wanted is not None and wanted.type == self.device.type


def _numbered(device: torch.device) -> torch.device:
    """As tensors name it."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
