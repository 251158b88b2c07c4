"""The nodes of `Spec.structure`, and what makes a sample of its leaves by them."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Node: TypeAlias = tuple[Any, ...]  # see Spec.structure


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
