"""The nodes of `Spec.structure`: what makes a sample of its leaves by them, and what finds the leaves of a sample."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

from ringfeed._checks import error_of
from ringfeed.spec.array import Array, fields_of, shown
from ringfeed.spec.values import plain

if TYPE_CHECKING:
    from collections.abc import Callable

Node: TypeAlias = tuple[Any, ...]  # see Spec.structure


def flatness(structure: Node) -> int:
    """Return 1 for a bare leaf, 2 for a plain tuple of leaves, 0 for anything else."""
    if structure[0] == "leaf":
        return 1
    return 2 * (
        structure[0] == "tuple"
        and structure[1] is None
        and all(child[0] == "leaf" for child in structure[2])
    )


def wrapper(node: Node) -> Callable[[Any], object]:
    """Return the function that makes the node's container of its children."""
    if node[0] == "dict":
        return lambda children: dict(zip(node[1], children, strict=True))
    return list if node[0] == "list" else tuple if node[1] is None else node[1]._make


def rebuilder(node: Node) -> Callable[[Any], object]:
    """Return the function that makes the node's value of all leaves of the spec."""
    if node[0] == "leaf":
        return operator.itemgetter(node[1])
    if node[0] == "none":
        return lambda _: None
    wrap, parts = wrapper(node), [rebuilder(child) for child in node[-1]]
    return lambda leaves: wrap([part(leaves) for part in parts])


def renamed(node: Node, to: Callable[[Any], object]) -> Node:
    """Return the node with each NamedTuple class replaced by what ``to`` makes of it."""
    if node[0] in {"leaf", "none"}:
        return node
    label = [to(part) if node[0] == "tuple" and part is not None else part for part in node[1:-1]]
    return (node[0], *label, [renamed(child, to) for child in node[-1]])


# ---- values in containers ----


def parts_of(value: Any, where: str) -> list[tuple[str, object]]:
    """Return the children of a container, each with where it stands; of an endless __iter__, one too many."""
    if isinstance(value, dict):
        return [(f"{where}[{key!r}]", child) for key, child in value.items()]
    if (fields := fields_of(value)) is not None:
        return [(f"{where}.{name}", child) for name, child in zip(fields, value, strict=True)]
    return [
        (f"{where}[{number}]", child)
        for number, child in zip(range(len(value) + 1), value, strict=False)
    ]


def gather(model: Any, value: Any, where: str, leaves: list[object]) -> None:
    """Append the leaves of a value to ``leaves``, in the order of the tree of Arrays ``model``."""
    if isinstance(model, Array):
        leaves.append(value)
        return
    value = plain(value)
    if shown(value) != (expected := shown(model)):
        from ringfeed.spec.refusals import other_structure  # noqa: PLC0415 - only where it is needed

        remedy = other_structure(value, model, where)
        if model is None:
            expected, remedy = (
                "None as the spec has it there",
                "return None for every index, or for none",
            )
        raise error_of(where, f"is {shown(value)}", expected, remedy)
    if model is None:
        return
    if isinstance(model, dict):
        _check_keys(model, value, where)
        value = {key: value[key] for key in model}
    if len(below := parts_of(model, "")) != len(parts := parts_of(value, where)):
        got = f"is {expected}, but its __iter__ gives others"
        raise error_of(where, got, "as many", "return a plain list or tuple")
    for (_, inner), (path, child) in zip(below, parts, strict=True):
        gather(inner, child, path, leaves)


def _check_keys(model: dict[Any, object], value: dict[Any, object], where: str) -> None:
    lacks, also = (
        [key for key in model if key not in value],
        [key for key in value if key not in model],
    )
    if got := " and ".join([f"lacks {lacks}"] * bool(lacks) + [f"has also {also}"] * bool(also)):
        raise error_of(
            where, got, f"the keys {list(model)}", "return the same keys for every index"
        )
