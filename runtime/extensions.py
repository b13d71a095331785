"""Finds installed extensions by entry point, identifies their code, and creates them with the options of a loop file.

An extension is a class or function of an installed distribution. A loop file gives only its short name, never a module path. The module
is imported when the extension is loaded, and not before.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from inspect import Parameter
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

import ratchet
from ratchet.contracts.errors import ConfigError, RatchetError
from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.ids import Digest, digest, digest_file
from ratchet.contracts.wording import first_problem

_PRODUCT = Path(ratchet.__file__).resolve().parent


class ExtensionKind(StrEnum):
    """Kind of extension. Each has one entry point group."""

    REWARD = "reward"
    SOURCE = "source"
    DIALECT = "dialect"
    CHECK = "check"
    SERVER = "server"
    ROUTER = "router"
    METRICS = "metrics"
    TRAINER = "trainer"

    @property
    def group(self) -> str:
        """Entry point group of the kind."""
        return f"ratchet.{self.value.removesuffix('s')}s"


@dataclass(frozen=True)
class Extension:
    """A loaded extension, with the distribution that provides it."""

    kind: ExtensionKind
    name: str
    """Entry point name."""
    target: Callable[..., Any]
    """The class, or the function that returns the object."""
    distribution: str
    version: str

    def identity(self) -> ExtensionVersion:
        """Return the code version of the extension.

        The digest covers all files of the outermost package that contains its module, including prompts and rubrics. For a module
        outside any package, it covers the source file. A wheel and an editable install have the same digest. Raises `ConfigError` if the
        source is not available.
        """
        module = inspect.getmodule(self.target)
        source = inspect.getsourcefile(module) if module else None
        if source is None:
            raise ConfigError(f"{self.kind} {self.name!r}: cannot pin its version without its source; install the source")
        return ExtensionVersion(name=self.name, distribution=self.distribution, version=self.version, code=_code(Path(source).resolve()))

    def create(self, *given: Any, options: Mapping[str, Any], where: str) -> Any:
        """Create the object with the arguments of its kind and the options of the loop file's table `where`, as keyword arguments.

        Options are checked against the names and types in the signature. Raises `ConfigError` if an option is unknown, missing or has a
        wrong type, or if the constructor fails.
        """
        label = f"{self.kind} {self.name!r} ({self.distribution} {self.version})"
        known, more = _options(self.target, len(given))
        for key in options:
            if key not in known and not more:
                raise ConfigError(
                    f"{where}.{key}: {label} has no option {key!r}{nearest(key, list(known))}; its options: {', '.join(known) or 'none'}"
                )
        missing = [key for key, parameter in known.items() if parameter.default is Parameter.empty and key not in options]
        if missing:
            raise ConfigError(f"{where}.{missing[0]}: {label} needs the option {missing[0]!r}; add it to the loop file")
        checked = {key: _checked(known.get(key), value, f"{where}.{key}: {label}") for key, value in options.items()}
        try:
            return self.target(*given, **checked)
        except RatchetError:
            raise
        except Exception as error:
            raise ConfigError(f"{where}: {label} cannot be created: {type(error).__name__}: {error}; correct the loop file") from error


def offers(kind: ExtensionKind) -> dict[str, list[EntryPoint]]:
    """Return the installed entry points of a kind by name, sorted, without an import. A name in use twice has several."""
    found: dict[str, list[EntryPoint]] = {}
    path = tuple((folder, _changed(folder)) for folder in sys.path)
    for entry in sorted(_installed(path)[kind], key=lambda entry: (entry.name, provider(entry))):
        if not any((provider(entry), entry.value) == (provider(other), other.value) for other in found.get(entry.name, ())):
            found.setdefault(entry.name, []).append(entry)
    return found


def load(kind: ExtensionKind, name: str, where: str = "") -> Extension:
    """Import the extension of a kind by its entry point name. `where` is the key of the loop file that names it, if one does.

    Raises `ConfigError` if no installed distribution provides the name, if several do, or if the import fails.
    """
    found = offers(kind)
    if name not in found:
        installed = ", ".join(found) or "none; reinstall ratchet"
        at = f"{where}: " if where else ""
        own = f"; to write your own, see docs/extending/{kind}.md"
        raise ConfigError(f"{at}no {kind} {name!r} is installed{nearest(name, list(found))}; installed: {installed}{own}")
    if len(found[name]) > 1:
        several = ", ".join(f"{provider(entry)[0]} ({entry.value})" for entry in found[name])
        raise ConfigError(f"{kind} {name!r} is provided more than once: {several}; uninstall all but one")
    (entry,) = found[name]
    distribution, version = provider(entry)
    try:
        target = entry.load()
    except (Exception, SystemExit) as error:  # the module is third-party code, which may raise anything at import
        raise ConfigError(
            f"{kind} {name!r} of {distribution} {version} cannot be imported from {entry.value}: {type(error).__name__}: {error}; "
            f"reinstall or uninstall {distribution}"
        ) from error
    return Extension(kind, name, target, distribution, version)


def provider(entry: EntryPoint) -> tuple[str, str]:
    """Return name and version of the distribution that provides an entry point."""
    return _described(entry.dist) if entry.dist else ("unknown", "0")


@lru_cache(maxsize=1024)
def _described(distribution: Distribution) -> tuple[str, str]:
    """Return name and version of a distribution, whose metadata take milliseconds to parse."""
    return distribution.name, distribution.version


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar known word. Returns an empty string if none is similar."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


@lru_cache(maxsize=4)
def _installed(_path: tuple[tuple[str, int], ...]) -> Mapping[ExtensionKind, tuple[EntryPoint, ...]]:
    """Read the entry points of all distributions, which takes tens of milliseconds. An installation changes a folder of the path."""
    found = entry_points()
    return {kind: tuple(found.select(group=kind.group)) for kind in ExtensionKind}


def _changed(path: str) -> int:
    """Return the time of the last change of a folder of the import path in nanoseconds; 0 if it does not exist."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _options(target: Callable[..., Any], given: int) -> tuple[dict[str, Parameter], bool]:
    """Return the parameters that options can set, and whether the target takes any further keyword."""
    try:
        signature = inspect.signature(target, eval_str=True)
    except NameError:  # an annotation that is imported for type checkers only
        signature = inspect.signature(target)
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    known = [p for p in parameters if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) and p not in positional[:given]]
    return {p.name: p for p in known}, any(p.kind is Parameter.VAR_KEYWORD for p in parameters)


def _checked(parameter: Parameter | None, value: Any, label: str) -> Any:
    """Return the value in the type of its parameter. An annotation that pydantic does not know is not checked."""
    if parameter is None or parameter.annotation is Parameter.empty or isinstance(parameter.annotation, str):
        return value
    try:
        return TypeAdapter(parameter.annotation).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{label} rejects {value!r}: {first_problem(error)}; correct the loop file") from error
    except PydanticUserError:
        return value


def _code(source: Path) -> Digest:
    """Return the digest of the top-level package that contains `source`, for our own extensions of the subpackage of `ratchet`."""
    packages = list(takewhile(lambda folder: folder != _PRODUCT and (folder / "__init__.py").is_file(), source.parents))
    if not packages:
        return digest_file(source)
    files = tuple(_files(packages[-1]))
    return _code_of(packages[-1], files, tuple(_stamp(path) for path in files))


@lru_cache(maxsize=64)
def _code_of(package: Path, files: tuple[Path, ...], _stamps: tuple[tuple[int, int], ...]) -> Digest:
    """Return the digest of the files of a package. Many extensions are in one package, and many lines use each of them."""
    return digest([[path.relative_to(package).as_posix(), digest_file(path)] for path in files])


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_ctime_ns, stat.st_size


def _files(package: Path) -> Iterator[Path]:
    return (path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
