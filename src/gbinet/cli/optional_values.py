"""How options are shown: `--masks PATH`, not `--masks {None}|PATH`; and their texts flow."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
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


_SEEN: Any = object()  # marks a type whose own rule is asked for


@REGISTRY.primitive_rule
def _or_none(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """The default of an option that takes any number of values: "none", where there are none."""
    if info.type_origin is not tuple or typing.get_args(info.type)[-1] is not ... or _SEEN in info.markers:
        return None
    spec = ConstructorRegistry.get_primitive_spec(
        PrimitiveTypeInfo.make(info.type, {*info.markers, _SEEN})  # the usual one
    )
    if isinstance(spec, UnsupportedTypeAnnotationError):
        return None
    return replace(spec, str_from_instance=lambda value: spec.str_from_instance(value) or ["none"])


def flow(run: Callable[..., Any] | Mapping[str, Callable[..., Any]]) -> None:
    """Where a line of an option's text ends in the source, none has to end on the screen."""
    for verb in run.values() if isinstance(run, Mapping) else [run]:
        text = verb.func if isinstance(verb, partial) else verb
        text.__doc__ = re.sub(r"\n {8,}", " ", inspect.getdoc(text) or "")
