"""Triton kernels of the renderer."""

from gbinet.ops import usable as usable
