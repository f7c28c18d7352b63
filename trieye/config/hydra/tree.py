"""The composed config as a tree on the terminal."""

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from trieye.config.redaction import HIDDEN, looks_secret, redacted

if TYPE_CHECKING:
    from rich.tree import Tree


def print_tree(config: BaseModel) -> None:
    """Print a config as a tree, without its secrets; rich is loaded here and nowhere else."""
    from rich.console import Console

    Console().print(_grown(config))


def _grown(config: BaseModel) -> "Tree":
    from rich.tree import Tree

    tree = Tree(f"[bold]{type(config).__name__}[/bold]")
    for name in type(config).model_fields:
        _grow(tree, name, getattr(config, name))
    return tree


def _grow(tree: "Tree", name: str, value: Any) -> None:
    from rich.text import Text

    value = HIDDEN if looks_secret(name) and value is not None else redacted(value)
    children = _children(value)
    if not children:
        tree.add(Text.assemble((name, "cyan"), " = ", repr(value)))
        return
    branch = tree.add(Text(name, "bold cyan"))
    for key, child in children.items():
        _grow(branch, key, child)


def _children(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, BaseModel) for item in value):
        return {str(getattr(item, "name", number)): item for number, item in enumerate(value)}
    return {}
