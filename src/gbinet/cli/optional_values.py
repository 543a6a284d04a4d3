"""How an option that may be omitted is shown: `--masks PATH`, not `--masks {None}|PATH`."""

from __future__ import annotations

import types
import typing
from dataclasses import replace
from typing import Any

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _or_nothing(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`X | None` is read and shown as X; nobody types None."""
    kinds = typing.get_args(info.type) if info.type_origin in (types.UnionType, typing.Union) else ()
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) != 1 or len(kinds) != 2:
        return None
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(others[0], info.markers))
    if isinstance(spec, UnsupportedTypeAnnotationError):
        return None
    return replace(
        spec,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["none"] if value is None else spec.str_from_instance(value),
    )
