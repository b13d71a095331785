"""Reads and validates a loop file. contracts/loop defines the settings, and trainers/recipes defines the recipes."""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.contracts.wording import MISSING_KEY, UNKNOWN_KEY, Problem, problems
from ratchet.flows.config.values import wrong_booleans, wrong_trigger


def load_loop(path: Path) -> Loop:
    """Read the loop file at `path`. Raises ConfigError with one line per error if it is missing or invalid."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(f"there is no loop file {path}; give the path of a loop file (*.toml)") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; pass a loop file (*.toml)") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); a loop file is TOML") from error
    except OSError as error:
        raise ConfigError(f"cannot read the loop file {path}: {error.strerror}; make it readable for this user") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}{_wrong_line(text, str(error))}") from error
    return parse_loop(data, str(path))


def _wrong_line(text: str, error: str) -> str:
    """Return the key of the line at which the parser stopped, but not its value, which may be secret; and what is often wrong there."""
    place = re.search(r"line (\d+)", error)
    line = text.splitlines()[int(place[1]) - 1 : int(place[1])] if place else []
    if not line:
        return ""
    key, equals, value = line[0].partition("=")
    if not equals:
        return f": {key.strip()[:60]!r}"
    remedy = ""
    if set("“”„‘’") & set(value):
        remedy = '; write straight quotation marks (") instead of typographic ones'
    elif re.match(r"\s*(?!(true|false|inf|nan)\b)[A-Za-z_/~.]", value):
        remedy = "; a text needs quotation marks"
    return f": the value of {key.strip()[:60]!r}{remedy}"


def parse_loop(data: dict[str, Any], where: str) -> Loop:
    """Validate `data` as a Loop. `where` names the origin in messages. Raises ConfigError with one line per error.

    Batches that `data` does not set are those that the machines of the line divide (`ratchet.trainers.batches`).
    """
    try:
        loop = Loop.model_validate(data)
    except ValidationError as error:
        booleans = dict(wrong_booleans(data, Loop))
        found = [one for one in problems(error) if one.key not in booleans]
        lines = [f"{where}: {text}" for text in (*booleans.values(), *_complaints(found, data))]
        raise ConfigError("\n".join(lines)) from None
    wrongs = (*dict(wrong_booleans(data, Loop)).values(), *wrong_trigger(loop.trigger), *_wrong_receivers(loop), *_wrong_recipes(loop))
    if lines := [f"{where}: {wrong}" for wrong in wrongs]:
        raise ConfigError("\n".join(lines))
    return _with_divisible_batches(loop, where)


def _with_divisible_batches(loop: Loop, where: str) -> Loop:
    """Complete the batches here, so that check, plan, render and the jobs have the same ones."""
    from ratchet.trainers.batches import divisible

    fitted = loop.model_copy(update={"training": divisible(loop.training)})
    if lines := [f"{where}: {wrong} (a batch that is not set is fitted to the machines)" for wrong in _wrong_recipes(fitted)]:
        raise ConfigError("\n".join(lines))
    return fitted


def _wrong_receivers(loop: Loop) -> Iterator[str]:
    """A line has one spool and one address for OTLP requests, so a second receiver would read the records of the first."""
    receivers = [number for number, source in enumerate(loop.sources, 1) if source.kind == "receiver"]
    yield from (f"sources[{number}]: a line has one receiver, and sources[{receivers[0]}] is one; remove it" for number in receivers[1:])


def _wrong_recipes(loop: Loop) -> Iterator[str]:
    """Check all recipes of built-in trainers, including those of methods that are not allowed now, so that errors do not surface later."""
    from ratchet.trainers.recipes.completion import KINDS, complete

    for method, kind in KINDS.items():
        if not loop.training.built_in(method):
            continue
        try:
            complete(kind, loop.training.recipe(method))
        except ConfigError as error:
            yield f"training.{method.value}: {error}"


def _complaints(found: list[Problem], data: dict[str, Any]) -> Iterator[str]:
    """Yield one text per problem. A misspelt required key is one problem, which pydantic reports twice: as missing and as unknown."""
    unknown = {one.location for one in found if one.kind == UNKNOWN_KEY}
    typed = {one.location: (*one.location[:-1], _misspelling(one.location, data)) for one in found if one.kind == MISSING_KEY}
    meant = {wrong: right for right, wrong in typed.items() if wrong in unknown}
    for one in found:
        if one.location in meant:
            yield f"unknown key {one.key!r}; did you mean {str(meant[one.location][-1])!r}? It is required"
        elif one.kind == UNKNOWN_KEY:
            yield f"unknown key {one.key!r}{_nearest(str(one.location[-1]), _known(one.location[:-1]))}"
        elif one.kind != MISSING_KEY:
            yield one.sentence()
        elif one.location not in meant.values():
            yield f"the key {one.key!r} is missing"


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; valid keys: {', '.join(known)}" if known else ""


def _misspelling(location: tuple[str | int, ...], data: Any) -> str:
    """Return the key of the file that is most similar to a missing one, or empty text."""
    for part in location[:-1]:
        data = data[part]
    close = difflib.get_close_matches(str(location[-1]), [str(key) for key in data], n=1) if isinstance(data, dict) else []
    return close[0] if close else ""


def _known(location: tuple[str | int, ...]) -> list[str]:
    """List the valid keys of the section that `location` points to."""
    model: Any = Loop
    for part in location:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(part)
            model = _model_in(field.annotation) if field else None
    return sorted(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """Find the settings class in an annotation such as `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in typing.get_args(annotation) if (found := _model_in(arg)) is not None), None)
