"""Runs one task of EleutherAI's lm-evaluation-harness for one model. Executed by the Python that has `lm_eval`, not imported.

It reads its order as one line of JSON from standard input, and writes the result as JSON to the file that the order names. It ends at once
when standard input is closed, so that it never outlives the process that asked for it. Only the standard library and `lm_eval` are used.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

GENERATES = "generate_until"
CHOOSES = ("multiple_choice", "loglikelihood")
"""Kinds of tasks that compare the probabilities of given answers."""
NOTHING = "\x1bno text\x1b"
"""What lm-eval records as the answer if a reply has no text. By default it is an empty text, which a model may also answer."""


class Refused(Exception):
    """The order cannot be carried out. `kind` says why, for the process that asked."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def main() -> None:
    """Carry out the order of standard input."""
    order = json.loads(sys.stdin.readline())
    os.environ["LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER"] = NOTHING  # read when lm_eval is imported
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        found = carried_out(order)
    except Refused as error:
        found = {"kind": error.kind, "text": str(error)}
    except Exception as error:
        found = {"kind": "failed", "text": _chain(error)}
    part = Path(order["out"] + ".part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(order["out"])


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(3)


def _chain(error: BaseException | None) -> str:
    """Return the exception and its causes, the newest first."""
    found: list[str] = []
    while error is not None and len(found) < 4:
        found.append(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
        error = error.__cause__ or error.__context__
    return "; caused by ".join(found)


def carried_out(order: dict[str, Any]) -> dict[str, Any]:
    """Load the task, refuse what cannot or must not run, and ask the model unless the order only looks."""
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise Refused("missing", f"{type(error).__name__}: {error}") from error
    folder = order["folder"]
    manager = TaskManager(include_path=folder, include_defaults=folder is None)
    if order["task"] not in manager.all_tasks:
        named = ", ".join(sorted(manager.all_tasks)[:10]) if folder else "see `lm-eval ls tasks`"
        raise Refused("task", f"there is no task {order['task']!r}; known: {named or 'none'}")
    try:
        tasks = manager.load([order["task"]])["tasks"]
    except Exception as error:
        text = _chain(error)
        kind = "unsafe" if "code_eval" in text else "data" if _is_data(error) else "task"
        raise Refused(kind, f"the task executes the answers as programs: {text}" if kind == "unsafe" else text) from error
    _refuse(tasks, order)
    about = {"version": lm_eval.__version__, "documents": {name: len(task.eval_docs) for name, task in tasks.items()}}
    if order["look"]:
        return {"kind": "looked", **about}
    return {"kind": "asked", **about, **_asked(tasks, manager, order)}


def _is_data(error: BaseException | None) -> bool:
    """Whether the data set of a task is not in the local cache."""
    while error is not None:
        names = {one.__name__ for one in type(error).__mro__}
        if names & {"OfflineModeIsEnabled", "LocalEntryNotFoundError", "DatasetNotFoundError", "ConnectionError", "FileNotFoundError"}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _refuse(tasks: dict[str, Any], order: dict[str, Any]) -> None:
    """Refuse tasks that execute code, that nothing can decide per document, or that the API does not allow."""
    for name, task in tasks.items():
        kind, metrics = task.get_config("output_type"), [str(one.get("metric")) for one in task.get_config("metric_list") or ()]
        if getattr(task, "UNSAFE_CODE", False) or "code_eval" in metrics:
            raise Refused("unsafe", f"the task {name} executes the answers as programs (unsafe_code)")
        if kind != GENERATES and kind not in CHOOSES:
            raise Refused("output", f"the task {name} is of the kind {kind}, which has no right and wrong answers")
        if kind in CHOOSES and order["chat"]:
            raise Refused("chat", f"the task {name} is of the kind {kind}, which needs the probabilities of the given answers")
        if kind in CHOOSES and not order["tokenizer"]:
            raise Refused("tokenizer", f"the task {name} is of the kind {kind}, which needs the tokenizer of the model")
    if not order["look"] and any(task.get_config("output_type") in CHOOSES for task in tasks.values()):
        _refuse_without_logprobs(order)


def _refuse_without_logprobs(order: dict[str, Any]) -> None:
    """Ask the server for the probabilities of a prompt as lm-eval does, because it would fail in the middle with an unclear error."""
    body = {"model": order["model"], "prompt": "a b", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    place = urlsplit(order["url"])
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.netloc, timeout=60)
    try:
        connection.request("POST", f"{place.path}/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
    except ConnectionRefusedError as error:
        raise Refused("away", "ConnectionRefusedError") from error
    finally:
        connection.close()
    if reply.status != 200:
        raise Refused("logprobs", f"/v1/completions answers HTTP {reply.status}")
    try:
        found = json.loads(text)["choices"][0]["logprobs"]["token_logprobs"]
    except (LookupError, TypeError, ValueError) as error:
        raise Refused("logprobs", "/v1/completions does not return the probabilities of the prompt") from error
    if not isinstance(found, list) or len(found) < 2:
        raise Refused("logprobs", "/v1/completions does not repeat the prompt with its probabilities")


def _asked(tasks: dict[str, Any], manager: Any, order: dict[str, Any]) -> dict[str, Any]:
    from lm_eval import simple_evaluate

    arguments: dict[str, Any] = {
        "model": order["model"],
        "base_url": f"{order['url']}/v1/{'chat/completions' if order['chat'] else 'completions'}",
        "num_concurrent": order["concurrency"],
        "max_retries": 3,
        "timeout": order["request_timeout"],
        "tokenizer_backend": "huggingface" if order["tokenizer"] else "None",
        "tokenized_requests": False,
    }
    if order["tokenizer"]:
        arguments["tokenizer"] = order["tokenizer"]
    found = simple_evaluate(
        model="local-chat-completions" if order["chat"] else "local-completions",
        model_args=arguments,
        tasks=[order["task"]],
        task_manager=manager,
        num_fewshot=order["few_shot"],
        limit=order["limit"],
        gen_kwargs=order["generation"] or None,
        apply_chat_template=order["chat"],
        log_samples=True,
        bootstrap_iters=0,
    )
    rows = []
    for name, samples in found["samples"].items():
        named = [str(one["metric"]) for one in tasks[name].get_config("metric_list") or ()]
        for one in samples:
            answers = [answer for draws in one["resps"] for answer in draws]
            rows.append(
                {
                    "task": name,
                    "document": one["doc_id"],
                    "filter": one["filter"],
                    "messages": _messages(one["arguments"][0][0]),
                    "target": _text(one["target"]),
                    "group": _text(one["doc"].get(order["group"])) if order["group"] and isinstance(one["doc"], dict) else None,
                    "answer": None if NOTHING in answers else _text(answers[0] if len(answers) == 1 else answers),
                    "scores": {key: _number(one[key]) for key in sorted(one["metrics"], key=lambda key: (key not in named, key))},
                }
            )
    return {"rows": rows, "temperature": max((_temperature(task) for task in tasks.values()), default=0.0)}


def _messages(asked: Any) -> list[dict[str, Any]]:
    """Return what was asked for a document. lm-eval keeps a conversation as JSON in a tuple of one element."""
    if isinstance(asked, tuple):
        found: list[dict[str, Any]] = json.loads(asked[0])
        return found
    return [{"role": "user", "content": str(asked)}]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _number(value: Any) -> float | None:
    """Return a metric of one document as a number. None for one that exists for all documents together only."""
    try:
        return None if isinstance(value, str | list | tuple | dict) else float(value)
    except (TypeError, ValueError):
        return None


def _temperature(task: Any) -> float:
    given = task.get_config("generation_kwargs") or {}
    return float(given.get("temperature") or 0.0)


if __name__ == "__main__":
    main()
