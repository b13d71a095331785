"""Facts that the reference pages take from the source code by its syntax tree."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.contracts import ids, rows

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("contracts", "runtime", "rewards", "materializer", "trainers", "gates", "router", "k8s", "local", "flows")


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a source file."""
    return ast.parse(path.read_text())


def sources() -> list[Path]:
    """Return the Python files of the product."""
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module by name."""
    return {node.name: node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)}


def documented(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Return name -> docstring of the assignments in `body` that a string literal follows."""
    found: dict[str, str] = {}
    for node, after in itertools.pairwise(body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            found |= {target.id: after.value.value for target in targets if isinstance(target, ast.Name)}
    return found


def members(kind: type) -> dict[str, str]:
    """Return name -> docstring of the attributes of a class of this project, with those of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.split(".")[0] == "ratchet":
            body = tree(Path(inspect.getsourcefile(base) or "")).body
            found |= documented(next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == base.__name__))
    return found


def constants(module: Any) -> dict[str, str]:
    """Return name -> docstring of the documented names of a module."""
    return documented(tree(Path(module.__file__)).body)


class Call(NamedTuple):
    """A place that writes a row: its file, whether the row has data, and the type of the data if the code names it."""

    path: str
    given: bool
    content: type[rows.RowContent] | None


def named_content(value: ast.expr | None, function: ast.FunctionDef) -> type[rows.RowContent] | None:
    """Return the type that an expression constructs, or that the value of the name constructs which the function assigned to it."""
    if isinstance(value, ast.Name):
        assignments = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
        value = next((node.value for node in assignments if ast.unparse(node.targets[0]) == value.id), None)
    found = getattr(rows, ast.unparse(value.func), None) if isinstance(value, ast.Call) else None
    return found if isinstance(found, type) else None


@cache
def ledger_rows() -> dict[str, Call]:
    """Return all places that write ledger rows. The key is the kind, the module's name and the function."""
    found = {}
    for path in sources():
        module = path.relative_to(ROOT)
        if module.parts[0] == "contracts":
            continue
        for scope in (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Row", "row_of")):
                kind, content, *_ = *call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "kind"), None, None
                given = content is not None
                found[f"{ast.literal_eval(kind)} {path.stem}.{scope.name}"] = Call(module.as_posix(), given, named_content(content, scope))
    return found


class Word(str):
    """A placeholder that ignores format specifications."""

    __slots__ = ()

    def __format__(self, _: str) -> str:
        """Return the placeholder itself."""
        return str(self)


def streams() -> Iterator[tuple[str, str, str]]:
    """Yield name, pattern and meaning of each kind of stream."""
    for name, function in vars(ids).items():
        if name.endswith("_stream"):
            words = [Word("cycle/LINE/NUMBER" if word == "cycle" else word.upper()) for word in inspect.signature(function).parameters]
            yield name.removesuffix("_stream"), function(*words), str(function.__doc__).removeprefix("Return the ledger stream of ")


def environment() -> set[str]:
    """Return the RATCHET_* variables that the product's files name."""
    scripts = sorted((ROOT / "loops").glob("*/*.sh"))
    return {name for path in (*sources(), *scripts) for name in re.findall(r"\bRATCHET_[A-Z_]*[A-Z]\b", path.read_text())}


def home_path(function: ast.FunctionDef) -> str:
    """Return the path below the home folder that a method of `Home` computes, or empty text."""
    for node in ast.walk(function):
        parts: list[str] = []
        left: ast.AST = node
        while isinstance(left, ast.BinOp):
            parts.insert(0, _name(left.right))
            left = left.left
        if parts and ast.unparse(left) == "self.root":
            return "/".join(parts)
    return ""


def _name(part: ast.expr) -> str:
    """Return a part of a path: constant text as it is, and variables in capitals."""
    if isinstance(part, ast.JoinedStr):
        return "".join(_name(value.value if isinstance(value, ast.FormattedValue) else value) for value in part.values)
    return str(part.value) if isinstance(part, ast.Constant) else ast.unparse(part).upper()


def entry_points() -> dict[str, dict[str, str]]:
    """Return the entry points of the project: group -> name -> object."""
    groups: dict[str, dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return groups


def purpose(target: str) -> str:
    """Return the first paragraph of the docstring of a class or function, named as `module:Name`. The module is not imported."""
    module, name = target.split(":")
    body = tree((ROOT / module.replace(".", "/")).with_suffix(".py")).body
    found = next(node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)
    return (ast.get_docstring(found) or "").split("\n\n")[0]
