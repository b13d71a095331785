"""Training sets as files for trainers elsewhere: TRL, NeMo RL, OpenAI's fine-tuning, or the tables as Ratchet stores them.

A training set holds no holdout prompt, no golden prompt, and nothing that governance leaves out. So neither do its files.
Formats: TRL's conversational data sets; `PreferenceDataset`, `OpenAIFormatDataset` and `ResponseDataset` of NeMo RL; the JSON Lines of
OpenAI's supervised, preference and reinforcement fine-tuning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratchet.contracts.conversation import Message, answer_message
from ratchet.contracts.data.datasets import TrainingSet
from ratchet.contracts.ids import Digest
from ratchet.contracts.ports import Artifacts
from ratchet.materializer.lake.schemas import read_parquet
from ratchet.runtime.chat_template import template_messages

Row = Mapping[str, Any]


@dataclass
class ExportedFiles:
    """The files of an export: names, contents and counts."""

    contents: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """File -> number of its rows."""
    left_out: dict[str, int] = field(default_factory=dict)
    """File -> number of rows that the format cannot express: prompts without a right answer."""


@dataclass(frozen=True)
class _Format:
    """How a format writes a row. A function returns None for a row that the format cannot express."""

    pair: Callable[[Row], dict[str, Any]]
    demonstration: Callable[[Row], dict[str, Any]]
    prompt: Callable[[Row], dict[str, Any] | None]


def export_files(data: TrainingSet, artifacts: Artifacts, form: str) -> ExportedFiles:
    """Return the files of a training set in the format `form`, one of EXPORT_FORMATS. The same training set gives the same bytes."""
    tables = {"preference": data.pairs, "sft": data.demonstrations, "prompts": data.prompts, "development": data.development}
    found = ExportedFiles()
    for name, key in tables.items():
        if key is None:
            continue
        if form == "parquet":
            found.contents[f"{name}.parquet"] = artifacts.get(key)
            found.rows[f"{name}.parquet"] = len(read_parquet(found.contents[f"{name}.parquet"]))
        else:
            _write(found, f"{name}.jsonl", key, artifacts, _writer(_FORMATS[form], name))
    return found


def _writer(form: _Format, table: str) -> Callable[[Row], dict[str, Any] | None]:
    return {"preference": form.pair, "sft": form.demonstration}.get(table, form.prompt)


def _write(found: ExportedFiles, name: str, key: Digest, artifacts: Artifacts, write: Callable[[Row], dict[str, Any] | None]) -> None:
    rows = read_parquet(artifacts.get(key)).to_dicts()
    lines = [line for line in map(write, rows) if line is not None]
    found.contents[name] = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    found.rows[name] = len(lines)
    if len(lines) < len(rows):
        found.left_out[name] = len(rows) - len(lines)


def _messages(row: Row) -> list[Message]:
    return list(json.loads(row["prompt"]))


def _tools(row: Row) -> dict[str, Any]:
    return {"tools": json.loads(row["tools"])} if row.get("tools") else {}


def _known(row: Row) -> str | None:
    """Return the right answer to a prompt, or None."""
    known = row["reference"] if row["reference"] is not None else row.get("answer")
    return None if known is None else str(known)


def _trl(row: Row, **answers: str) -> dict[str, Any]:
    """Return a row of TRL. Calls have arguments as objects, which templates render. Tools are JSON text, because a column has one type."""
    turns = {name: template_messages([answer_message(text)]) for name, text in answers.items()}
    extra = {"tools": row["tools"]} if row.get("tools") else {}
    return {"prompt": template_messages(_messages(row)), **turns, **extra}


def _trl_prompt(row: Row) -> dict[str, Any]:
    return {**_trl(row), "reference": _known(row)}


def _nemo_pair(row: Row) -> dict[str, Any]:
    ranked = [{"rank": rank, "completion": [answer_message(row[name])]} for rank, name in enumerate(("chosen", "rejected"))]
    return {"context": _messages(row), "completions": ranked}


def _dialogue(row: Row) -> dict[str, Any]:
    return {"messages": [*_messages(row), answer_message(row["answer"])], **_tools(row)}


def _nemo_prompt(row: Row) -> dict[str, Any] | None:
    known = _known(row)
    return None if known is None else {"messages": [*_messages(row), {"role": "assistant", "content": known}], **_tools(row)}


def _openai_pair(row: Row) -> dict[str, Any]:
    sides = {key: [answer_message(row[name])] for key, name in (("preferred_output", "chosen"), ("non_preferred_output", "rejected"))}
    return {"input": {"messages": _messages(row), **_tools(row)}, **sides}


def _openai_prompt(row: Row) -> dict[str, Any] | None:
    known = _known(row)
    return None if known is None else {"messages": _messages(row), **_tools(row), "reference": known}


_FORMATS = {
    "trl": _Format(
        pair=lambda row: {**_trl(row, chosen=row["chosen"], rejected=row["rejected"]), "weight": row["weight"]},
        demonstration=lambda row: {**_trl(row, completion=row["answer"]), "weight": row["weight"]},
        prompt=_trl_prompt,
    ),
    "nemo-rl": _Format(pair=_nemo_pair, demonstration=_dialogue, prompt=_nemo_prompt),
    "openai": _Format(pair=_openai_pair, demonstration=_dialogue, prompt=_openai_prompt),
}
