"""The real lm-evaluation-harness in an environment of its own (`make lmeval`), tasks for it, and a server whose answers are known."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tests.command import ROOT
from tests.needs import Need, lacks, shared_data

DOCUMENTS = 40
_TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
{more}
"""
GENERATES = 'doc_to_target: "{{answer}}"\ngeneration_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 8\nmetric_list:\n  - metric: exact_match'
_CHOOSES = "doc_to_target: gold\ndoc_to_choice: choices\nmetric_list:\n  - metric: acc"


def real_lm_eval() -> str:
    """Return the Python of the environment with lm-eval. Skips the test without the environment.

    `RATCHET_LM_EVAL` names the Python of another environment.
    """
    python = Path(os.environ.get("RATCHET_LM_EVAL", ROOT / ".venv-lmeval" / "bin" / "python"))
    if not python.exists():
        lacks(Need.LM_EVAL)
    return str(python)


def write_tasks(folder: Path) -> None:
    """Write tasks over questions whose answers alternate between yes and no. Two neighbours have the same topic."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"question": f"Is {n} even?", "answer": ("yes", "no")[n % 2], "choices": ["yes", "no"], "gold": n % 2, "topic": f"t{n // 2}"}
        for n in range(DOCUMENTS)
    ]
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, kind, more in (
        ("even", "generate_until", GENERATES),
        ("choice", "multiple_choice", _CHOOSES),
        ("code", "generate_until", f"{GENERATES}\nunsafe_code: true"),
        ("rolling", "loglikelihood_rolling", 'doc_to_target: "{{question}}"\nmetric_list:\n  - metric: word_perplexity'),
        ("away", "generate_until", GENERATES),
    ):
        text = _TASK.format(name=name, kind=kind, data=data, more=more)
        if name == "away":
            text = text.replace("dataset_path: json", "dataset_path: ratchet/not-in-the-cache").partition("dataset_kwargs")[0]
            text += f'test_split: test\noutput_type: generate_until\ndoc_to_text: "{{{{question}}}}"\n{GENERATES}\n'
        (folder / f"{name}.yaml").write_text(text)


def write_task(folder: Path, name: str, more: str = GENERATES, data: str | None = None) -> None:
    """Write a further task over the documents of `write_tasks`, or over others."""
    place = data or str(folder / "documents.jsonl")
    (folder / f"{name}.yaml").write_text(_TASK.format(name=name, kind="generate_until", data=place, more=more))


class Answer(NamedTuple):
    """An answer of a real model to a question of GSM8K."""

    text: str
    is_right: bool


def write_gsm8k(folder: Path) -> dict[str, dict[str, Answer]]:
    """Write the task `gsm8k` that comes with lm-eval, over a copy of its questions. Return question -> model -> answer of that model."""
    (published,) = Path(real_lm_eval()).parents[1].glob("lib/python3*/site-packages/lm_eval/tasks/gsm8k/gsm8k.yaml")
    text, place = published.read_text(), "dataset_path: openai/gsm8k\ndataset_name: main\n"
    assert place in text
    copies = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    train: {folder}/train.jsonl\n    test: {folder}/test.jsonl\n"
    (folder / "gsm8k.yaml").write_text(text.replace(place, copies))
    answers: dict[str, dict[str, Answer]] = {}
    test: dict[str, str] = {}
    with gzip.open(shared_data("gsm8k_traces", "golden.jsonl.gz"), "rt") as lines:
        for row in map(json.loads, lines):
            record = row["record"]
            question = record["messages"][0]["content"]
            answers.setdefault(question, {})[record["model"]] = Answer(record["response"], row["correct"])
            test[question] = f"#### {record['reference']}"
    examples = map(json.loads, shared_data("gsm8k_traces", "gsm8k_eval.jsonl").read_text().splitlines())
    train = {row["question"]: row["solution"] for row in examples}
    for name, documents in (("train", train), ("test", test)):
        rows = (json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in documents.items())
        (folder / f"{name}.jsonl").write_text("".join(rows))
    return answers


@contextmanager
def served(answer: Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]) -> Iterator[str]:
    """Run a server that answers each request with the status and the body that `answer` returns for its path and its body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            status, found = answer(self.path, body)
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def chat(text: str | None) -> tuple[int, dict[str, Any]]:
    """Return a reply of `/v1/chat/completions`."""
    return 200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}


def prompt_logprobs(body: dict[str, Any], likes: str) -> tuple[int, dict[str, Any]]:
    """Return a reply of `/v1/completions` with the probabilities of a prompt, one per word. Words that are `likes` are more probable."""
    words = body["prompt"].split()
    found = [None, *(-0.1 if word == likes else -5.0 for word in words[1:]), -1.0]
    return 200, {
        "choices": [
            {
                "index": 0,
                "text": body["prompt"],
                "logprobs": {"token_logprobs": found, "top_logprobs": [None if one is None else {"x": one} for one in found]},
            }
        ]
    }
