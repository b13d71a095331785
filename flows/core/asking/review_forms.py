"""The files in which questions go to reviewers and answers come back: JSON lines, and tasks and exports of Label Studio. Pure.

Source: https://labelstud.io/guide/tasks and https://labelstud.io/guide/export, JSON. No code of Label Studio was run on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ratchet.contracts.errors import ConfigError
from ratchet.flows.core.asking.review import ReviewAnswer, ReviewQuestion

FORMS = ("jsonl", "label-studio")
CONFIG = """<View>
  <Header value="$heading"/>
  <Text name="dialogue" value="$dialogue"/>
  <Text name="given" value="$given"/>
  <TextArea name="answer" toName="dialogue" required="true" maxSubmissions="1" rows="4" placeholder="the right answer"/>
</View>
"""
"""Labelling interface of the tasks, for the settings of a project."""


def as_lines(questions: Sequence[ReviewQuestion]) -> str:
    """Return the questions as JSON lines. A reviewer adds `answer` and `reviewer` to a line."""
    return "".join(json.dumps(_record(one), ensure_ascii=False) + "\n" for one in questions)


def as_tasks(questions: Sequence[ReviewQuestion]) -> str:
    """Return the questions as tasks that Label Studio imports."""
    tasks = []
    for one in questions:
        record = _record(one)
        heading = f"asked {one.requests} times, wrong in {one.wrong:.0%}" + (f", {one.slice}" if one.slice else "")
        told = {"heading": heading, "dialogue": _dialogue(one), "given": "\n---\n".join(text for text, _ in one.answers) or "no answer"}
        tasks.append({"data": {"review": record["review"], "trace": record["trace"], **told}, "meta": {"expected_gain": one.expected_gain}})
    return json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def _record(one: ReviewQuestion) -> dict[str, Any]:
    answers = [{"text": text, "reward": reward} for text, reward in one.answers]
    record = {"review": one.prompt_id, **{name: value for name, value in asdict(one).items() if name != "prompt_id"}}
    return {**record, "answers": answers, "answer": "", "reviewer": ""}


def _dialogue(one: ReviewQuestion) -> str:
    return "\n\n".join(f"{message['role']}: {_text(message.get('content'))}" for message in one.messages)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def read_answers(text: str, where: str, reviewer: str | None, now: str) -> tuple[list[ReviewAnswer], int]:
    """Return the answers of a file, and the number of questions in it without an answer.

    The file is one that `as_lines` wrote, with answers, or an export of Label Studio in JSON. `reviewer` is for answers that name none.
    `now` is the time of answers without one. Raises ConfigError with the place of the first record that cannot be read.
    """
    try:
        records = list(_of_label_studio(text, where) if text.lstrip()[:1] == "[" else _of_lines(text, where))
    except RecursionError as error:
        raise ConfigError(f"{where}: it is nested too deeply") from error
    found, open_ = list[ReviewAnswer](), 0
    for place, record in records:
        answer = _plain(record, "answer", place)
        if not answer:
            open_ += 1
            continue
        who = _plain(record, "reviewer", place) or (reviewer or "").strip()
        missing = [name for name in ("review", "trace") if not isinstance(record.get(name), str)]
        if missing:
            raise ConfigError(f"{place}: {' and '.join(missing)} of the question is missing; keep what the export wrote")
        if not who:
            raise ConfigError(f"{place}: the answer names no reviewer; add `reviewer`, or pass --reviewer NAME")
        found.append(ReviewAnswer(record["review"], record["trace"], answer, who, _plain(record, "time", place) or now))
    return found, open_


def _plain(record: dict[str, Any], name: str, place: str) -> str:
    """Return a text or a number of a record as stripped text; empty if there is none."""
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ConfigError(f"{place}: {name} must be a text or a number, not {type(value).__name__}")
    text = str(value).strip()
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place}: {name} has half of a character (a lone surrogate) at position {error.start}") from error
    return text


def _of_lines(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):  # other line separators are parts of texts
        if line.strip():
            place = f"{where}, line {number}"
            yield place, _object(line, place)


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{place}: it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{place}: it must be an object, not {type(found).__name__}")
    return found


def _of_label_studio(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        tasks = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: it is not JSON: {error}") from error
    for number, task in enumerate(tasks, 1):
        place = f"{where}, task {number}"
        data = task.get("data") if isinstance(task, dict) else None
        if not isinstance(data, dict):
            raise ConfigError(f"{place}: it has no data; export the project as JSON")
        marks = task.get("annotations") or []
        if not isinstance(marks, list) or not all(isinstance(one, dict) for one in marks):
            raise ConfigError(f"{place}: annotations must be a list of objects; export the project as JSON")
        given = [one for one in marks if not one.get("was_cancelled")]
        if not given:
            yield place, dict(data)
        for one in given:
            changed = one.get("updated_at") or one.get("created_at")
            yield place, {**data, "answer": _written(one, place), "reviewer": _person(one), "time": changed}


def _written(annotation: dict[str, Any], place: str) -> str:
    """Return the text of the annotation's area `answer`."""
    parts = annotation.get("result") or []
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and part.get("from_name") == "answer":
            value = part.get("value")
            texts = value.get("text") if isinstance(value, dict) else None
            texts = [texts] if isinstance(texts, str) else texts
            if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
                raise ConfigError(f"{place}: the area answer has no text; use the labelling interface of config.xml")
            return "\n".join(texts)
    return ""


def _person(annotation: dict[str, Any]) -> str:
    """Return who wrote an annotation: an e-mail address, or the number of the user."""
    by = annotation.get("completed_by")
    return str(by.get("email") or by.get("id") or "") if isinstance(by, dict) else str(by or "")
