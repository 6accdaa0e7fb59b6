"""Reads signatures and docstrings from source, and writes them as Markdown."""

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_ITEM = re.compile(r"([\w, `]+): (.*)", re.DOTALL)
_DECORATORS_LEFT_OUT = frozenset({"overload", "request_processor.setter"})


@dataclass(frozen=True)
class Described:
    """Holds what the source says of a class, a function or an attribute."""

    name: str
    signature: str
    doc: str
    members: list["Described"] = field(default_factory=list)

    def as_section(self, heading: str) -> Iterator[str]:
        """Yields the blocks of a section with this heading."""
        yield f"## {heading}"
        yield f"```python\n{self.signature}\n```"
        text, items = parts_of(self.doc)
        if text:
            yield text
        if items:
            yield "\n".join(f"- {item}" for item in items)
        if self.members:
            yield "Attributes and methods:"  # and else these would be items of the list above
            yield "\n".join(line for one in self.members for line in one.as_item())

    def as_item(self, instead: str = "") -> Iterator[str]:
        """Yields the lines of a list's item; `instead` stands in for a missing docstring."""
        text, items = parts_of(self.doc or instead)
        yield f"- `{self.signature}`" + (f": {' '.join(text.split())}" if text else "")
        yield from (f"    - {item}" for item in items)


def described(target: Any, elsewhere: Collection[str] = ()) -> Described:
    """Returns what the source says of a class, or of a function.

    What other classes of its package hand down to it belongs to it, but not what is described
    `elsewhere`, by the names of these classes.
    """
    if not inspect.isclass(target):
        return _function(_tree(target))
    members: dict[str, Described] = {}
    package = target.__module__.partition(".")[0]
    for base in reversed(target.__mro__):
        is_ours = base.__module__.partition(".")[0] == package
        if is_ours and (base is target or base.__name__ not in elsewhere):
            members |= {one.name: one for one in _members(_tree(base))}
    tree = _tree(target)
    constructors = [it for it in tree.body if _is_function(it) and it.name == "__init__"]
    signature = _signature(constructors[0], tree.name) if constructors else ""
    if not signature:
        bases_named = ", ".join(map(ast.unparse, tree.bases))
        signature = f"class {tree.name}" + (f"({bases_named})" if bases_named else "")
    return Described(tree.name, signature, ast.get_docstring(tree) or "", list(members.values()))


def _tree(target: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(target))).body[0]


def _is_function(node: Any) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _members(tree: ast.ClassDef) -> Iterator[Described]:
    """Yields the public attributes, properties and methods, in their order."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield _attribute(node.target.id, node)
        elif _is_function(node) and node.name == "__init__":
            yield from _set_attributes(node)
        elif _is_function(node):
            decorators = {ast.unparse(it) for it in node.decorator_list}
            if node.name.startswith("_") or decorators & _DECORATORS_LEFT_OUT:
                continue
            if "property" in decorators:
                kind = f": {ast.unparse(node.returns)}" if node.returns else ""
                yield Described(node.name, node.name + kind, ast.get_docstring(node) or "")
            else:
                yield _function(node)


def _attribute(name: str, node: ast.AnnAssign) -> Described:
    default = f" = {ast.unparse(node.value)}" if node.value else ""
    return Described(name, f"{name}: {ast.unparse(node.annotation)}{default}", "")


def _set_attributes(constructor: Any) -> Iterator[Described]:
    for node in ast.walk(constructor):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for it in targets:
            if isinstance(it, ast.Attribute) and not it.attr.startswith("_"):
                yield Described(it.attr, it.attr, "")


def _function(node: Any) -> Described:
    return Described(node.name, _signature(node, node.name), ast.get_docstring(node) or "")


def _signature(node: Any, name: str) -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg == "self":
        del arguments.args[0]
    result = f" -> {ast.unparse(node.returns)}" if node.returns and name == node.name else ""
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    # `ast` writes annotated defaults without spaces.
    return f"{prefix}{name}({ast.unparse(arguments).replace('=', ' = ')}){result}"


def parts_of(doc: str) -> tuple[str, list[str]]:
    """Returns a Google docstring's text, and the items of its sections as lines of a list."""
    text: list[str] = []
    items: list[str] = []
    section = ""
    for line in doc.splitlines():
        if match := _SECTION.fullmatch(line):
            section = match[1]
            if section in ("Returns", "Yields"):
                items.append(f"{section.lower()}:")
        elif not section:
            text.append(line)
        elif section in ("Returns", "Yields") or line.startswith(" " * 8):
            items[-1] += f" {line.strip()}"
        elif line.strip():
            items.append(_item(section, line.strip()))
    return "\n".join(text).strip(), [item.strip() for item in items]


def _item(section: str, line: str) -> str:
    match = _ITEM.fullmatch(line)
    if match is None:
        return line
    names = ", ".join(f"`{name.strip(' `')}`" for name in match[1].split(","))
    return f"{'raises ' if section == 'Raises' else ''}{names}: {match[2]}"
