"""Tensors with a shape and a device but no data, to find out which kernels a network launches.

Like torch's FakeTensorMode, which imports torch's compiler first, and that takes seconds. Here the few
operations besides the kernels are computed on the CPU, on uninitialised memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only


class EmptyTensor(torch.Tensor):
    """A tensor that claims to be on a device; its uninitialised memory is on the CPU."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor, device: torch.device) -> EmptyTensor:
        tensor: EmptyTensor = torch.Tensor._make_wrapper_subclass(
            cls, on_cpu.shape, strides=on_cpu.stride(), storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype, device=device,
        )  # fmt: skip
        tensor.on_cpu = on_cpu
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(
            f"{func}: this tensor has no data, and works inside `with ShapesOnly(device)` only"
        )


class ShapesOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, operations on a device give EmptyTensors: nothing is computed or allocated there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = _with_index(device)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch imports its compiler, which takes two seconds, to exclude this mode."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        inputs = [t for t in tree_flatten((args, options))[0] if isinstance(t, Tensor)]
        requested = None if options.get("device") is None else _with_index(torch.device(options["device"]))
        if not self._concerns(inputs, requested):
            return func(*args, **options)
        if func is torch.ops.aten.record_stream.default:  # nothing uses the memory
            return None
        cpu_tensors = {id(t): t.on_cpu if isinstance(t, EmptyTensor) else _like(t) for t in inputs}
        originals = {id(cpu_tensors[id(t)]): t for t in inputs}
        args, options = tree_map_only(Tensor, lambda t: cpu_tensors[id(t)], (args, options))
        if requested is not None:
            options = {**options, "device": torch.device("cpu")}
        result = func(*args, **options)
        devices = {t.device.type: t.device for t in inputs}
        device = requested or devices.get(self.device.type) or next(iter(devices.values()), self.device)
        # In-place operations return one of their inputs: then return the caller's tensor.
        return tree_map_only(
            Tensor, lambda t: originals[id(t)] if id(t) in originals else EmptyTensor(t, device), result
        )

    def _concerns(self, inputs: list[Tensor], requested: torch.device | None) -> bool:
        """Whether an operation reads from the device or writes to it."""
        if any(isinstance(t, EmptyTensor) or t.device.type == self.device.type for t in inputs):
            return True
        target = requested or (None if inputs else torch.device("cpu"))
        return target is not None and target.type == self.device.type


def _with_index(device: torch.device) -> torch.device:
    """The device as tensors report it: with an index."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
