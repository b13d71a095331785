"""Runs one task of EleutherAI's lm-evaluation-harness for one model. Executed by the Python that has `lm_eval`, not imported.

It reads its order as one line of JSON from standard input, and writes the result as JSON to the file that the order names. It ends at once
when standard input is closed, so that it never outlives the process that asked for it. Only the standard library and `lm_eval` are used.
"""

from __future__ import annotations

import copy
import http.client
import importlib
import json
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

GENERATES = "generate_until"
CHOOSES = ("multiple_choice", "loglikelihood")
"""Kinds of tasks that compare the probabilities of given answers."""
NOTHING = "\x1bno text\x1b"
"""Beginning of what lm-eval records as the answer if there is none, followed by the status and the text of a server that refused the
document. lm-eval itself records an empty text, which a model may also answer."""
_REFUSED = (400, 413, 422)
"""Status of a reply to a request that the server will never answer, for example because the document is too long."""
_BUSY = (408, 425, 429, 500, 502, 503, 504)
"""Status of a server that may answer later."""
_PAUSES = (1, 2, 4, 8)
"""Seconds before each further try with a busy server."""
_LONGEST_REASON = 2000
_LARGEST_FILE = 4 << 30
"""Maximum size in bytes of a file that the process writes, so that it does not fill the disk."""


class Refused(Exception):
    """The order cannot be carried out. `kind` says why, for the process that asked."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def main() -> None:
    """Carry out the order of standard input."""
    order = json.loads(sys.stdin.readline())
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        found = carried_out(order)
    except Exception as error:
        refused = _refusal(error)
        found = {"kind": refused.kind, "text": str(refused)} if refused else {"kind": "failed", "text": _chain(error)}
    part = Path(order["out"] + ".part")
    part.write_text(json.dumps(plain(found)), encoding="utf-8")
    part.replace(order["out"])


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(3)


def plain(value: Any) -> Any:
    """Return a value that can be stored as UTF-8: lone surrogates become question marks, and numbers that are not finite None."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {plain(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return the exception and its causes, the newest first."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _refusal(error: BaseException) -> Refused | None:
    return next((one for one in _causes(error) if isinstance(one, Refused)), None)


def _chain(error: BaseException) -> str:
    return "; caused by ".join(f"{type(one).__name__}: {' '.join(str(one).split())[:400]}" for one in _causes(error)[:4])


def carried_out(order: dict[str, Any]) -> dict[str, Any]:
    """Load the task, refuse what cannot or must not run, and ask the model unless the order only looks."""
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise Refused("missing", f"{type(error).__name__}: {error}") from error
    _forbid_downloads()
    folder = order["folder"]
    if folder is not None and not Path(folder).is_dir():
        raise Refused("task", f"there is no folder {folder}")
    manager = TaskManager(include_path=folder, include_defaults=folder is None)
    if order["task"] not in manager.all_tasks:
        named = f"known: {', '.join(sorted(manager.all_tasks)[:10]) or 'none'}" if folder else "see `lm-eval ls tasks`"
        raise Refused("task", f"there is no task {order['task']!r}; {named}{_unreadable(folder)}")
    try:
        tasks = manager.load([order["task"]])["tasks"]
    except Exception as error:
        text = _chain(error)
        kind = "unsafe" if "code_eval" in text else "data" if is_data(error) else "task"
        raise _refusal(error) or Refused(
            kind, f"the task executes the answers as programs: {text}" if kind == "unsafe" else text
        ) from error
    refuse(tasks, order)
    about = {"version": lm_eval.__version__, **counted({name: task.eval_docs for name, task in tasks.items()}, order)}
    if order["look"]:
        return {"kind": "looked", **about}
    if any(task.get_config("output_type") in CHOOSES for task in tasks.values()):
        _refuse_without_logprobs(order)
    return {"kind": "asked", **about, **_asked(tasks, manager, order)}


def _forbid_downloads() -> None:
    """Refuse the downloads that the variables of the environment do not prevent: files of an address, and the data of nltk."""
    datasets: Any = importlib.import_module("datasets")  # both are packages of lm-eval's environment, not of this one
    load = datasets.load_dataset

    def load_local(*given: Any, **named: Any) -> Any:
        refuse_addresses([given, named])
        return load(*given, **named)

    datasets.load_dataset = load_local
    try:
        nltk: Any = importlib.import_module("nltk")
    except ImportError:
        return

    def download(*given: Any, **_: Any) -> None:
        raise Refused("data", f"the data {', '.join(map(str, given)) or 'all'} of nltk")

    nltk.download = download


def refuse_addresses(value: Any) -> None:
    """Refuse data of an address in the arguments of `load_dataset`."""
    if isinstance(value, str) and "://" in value:
        raise Refused("task", f"the task loads {value[:200]!r}, and nothing is downloaded; store the file, and name its path in data_files")
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            refuse_addresses(one)


def _unreadable(folder: str | None) -> str:
    """Return which YAML files of a folder lm-eval leaves out because it cannot read them."""
    from lm_eval.tasks._yaml_loader import load_yaml

    found = []
    for path in sorted(Path(folder).rglob("*.yaml")) if folder else ():
        try:
            load_yaml(path, resolve_func=False)
        except Exception as error:
            found.append(f"{path.name} ({' '.join(str(error).split())[:120]})")
    return f"; these files cannot be read: {', '.join(found[:3])}" if found else ""


def is_data(error: BaseException) -> bool:
    """Whether the reason of an error is that a data set, or a metric with a program of its own, is not in the local cache."""
    kinds = {"OfflineModeIsEnabled", "LocalEntryNotFoundError", "DatasetNotFoundError", "ConnectionError"}
    texts = ("Couldn't find cache for", "Couldn't find a module script", "on the Hugging Face Hub")
    return any(kinds & {kind.__name__ for kind in type(one).__mro__} or any(text in str(one) for text in texts) for one in _causes(error))


def refuse(tasks: dict[str, Any], order: dict[str, Any]) -> None:
    """Refuse tasks that execute code, that nothing can decide per document, or that the settings or the API do not allow."""
    if order["tokenizer"] and not Path(order["tokenizer"]).is_dir():
        raise Refused("tokenizer", f"there is no folder {order['tokenizer']}")
    for name, task in tasks.items():
        kind, metrics = task.get_config("output_type"), named_metrics(task)
        if getattr(task, "UNSAFE_CODE", False) or "code_eval" in metrics:
            raise Refused("unsafe", f"the task {name} executes the answers as programs (unsafe_code)")
        if kind != GENERATES and kind not in CHOOSES:
            raise Refused("output", f"the task {name} is of the kind {kind}, which has no right and wrong answers")
        if kind in CHOOSES and order["chat"]:
            raise Refused("chat", f"the task {name} is of the kind {kind}, which needs the probabilities of the given answers")
        if kind in CHOOSES and not order["tokenizer"]:
            raise Refused("tokenizer", f"the task {name} is of the kind {kind}, which needs the tokenizer of the model")
        if order["filter"] not in (None, *(known := filters(task))):
            raise Refused("filter", f"the task {name} has no filter {order['filter']!r}; it has {', '.join(known)}")
        scored = _scored(task)
        known = in_order(scored or metrics, metrics)
        if scored and order["metric"] is not None and order["metric"] not in scored:
            raise Refused("metric", f"the task {name} has no metric {order['metric']!r}; it has {', '.join(known)}")
        refuse_lower(name, order["metric"] or next(iter(known), ""), task.higher_is_better())


def refuse_lower(task: str, metric: str, higher: dict[str, Any]) -> None:
    """Refuse a metric with which the gate would take the better model for the worse one."""
    if higher.get(metric) is False:
        raise Refused("metric", f"the lower {metric} of the task {task} is, the better, and the gate compares the other way round")


def named_metrics(task: Any) -> list[str]:
    """Return the metrics that the configuration of a task names, in its order."""
    return [str(one.get("metric")) for one in task.get_config("metric_list") or ()]


def in_order(found: Iterable[str], named: Sequence[str]) -> list[str]:
    """Return metrics in the order in which a task names them, and then those that it does not name."""
    return sorted(map(str, found), key=lambda one: named.index(one) if one in named else len(named))


def filters(task: Any) -> list[str]:
    """Return the names of the filters of a task, in its order."""
    return [str(one.name) for one in getattr(task, "_filters", ())]


def of_filter(samples: Sequence[dict[str, Any]], known: Sequence[str], given: str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the filter that decides, and its samples. A task without filters has one that is named none."""
    decides = given or next(iter(known), "none")
    return decides, [one for one in samples if str(one["filter"]) == decides]


def _scored(task: Any) -> list[str] | None:
    """Return the metrics that the first document of a task gets. None if the task cannot score an answer that no model gave."""
    try:
        document = next(iter(task.eval_docs))
        results: list[Any] = ["x"]
        if task.get_config("output_type") in CHOOSES:
            choices = len(task.doc_to_choice(document)) if task.get_config("output_type") == "multiple_choice" else 1
            results = [(-1.0, False)] * (choices * (2 if "acc_mutual_info" in named_metrics(task) else 1))
        return [str(one) for one in task.process_results(document, results)]
    except Exception as error:
        if refused := _refusal(error):
            raise refused from error
        return None


def counted(documents: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    """Return how many documents and observations each task has. Refuses a field of groups that no document has."""
    found, groups = dict[str, int](), dict[str, int]()
    grouped = False
    for name, all_documents in documents.items():
        found[name] = groups[name] = min(len(all_documents), order["limit"] or len(all_documents))
        if order["group"]:
            known = [group_of(one, order["group"]) for one in islice(all_documents, found[name])]
            grouped = grouped or any(one is not None for one in known)
            groups[name] = len({one for one in known if one is not None}) + known.count(None)
    if order["group"] and not grouped:
        raise Refused("group", f"no document has the field {order['group']!r}")
    return {"documents": found, "groups": groups}


def group_of(document: Any, field: str) -> str | None:
    """Return the value of a field as text. None if the document has none."""
    value = document.get(field) if isinstance(document, dict) else None
    return None if value is None else _text(value)


def _refuse_without_logprobs(order: dict[str, Any]) -> None:
    """Ask the server for the probabilities of a prompt as lm-eval does, because it would fail in the middle with an unclear error."""
    status, text = _probed(order)
    for pause in _PAUSES:
        if status not in _BUSY:
            break
        time.sleep(pause)
        status, text = _probed(order)
    if status in _BUSY:
        raise Refused("failed", f"/v1/completions answers HTTP {status}, also after {sum(_PAUSES)} s")
    if status != 200:
        raise Refused("logprobs", f"/v1/completions answers HTTP {status}")
    try:
        found = json.loads(text)["choices"][0]["logprobs"]["token_logprobs"]
    except (LookupError, TypeError, ValueError) as error:
        raise Refused("logprobs", "/v1/completions does not return the probabilities of the prompt") from error
    if not isinstance(found, list) or len(found) < 2:
        raise Refused("logprobs", "/v1/completions does not repeat the prompt with its probabilities")


def _probed(order: dict[str, Any]) -> tuple[int, bytes]:
    body = {"model": order["model"], "prompt": "a b", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    place = urlsplit(order["url"])
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.netloc, timeout=60)
    try:
        connection.request("POST", f"{place.path}/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    except ConnectionRefusedError as error:
        raise Refused("away", "ConnectionRefusedError") from error
    finally:
        connection.close()


def _model(order: dict[str, Any]) -> Any:
    """Return lm-eval's model of an API, with another way to read replies.

    lm-eval takes a reply without a text for an empty answer, gives answers to the wrong documents if a reply has no or several choices,
    and ends a run if the server refuses one document.
    """
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    kind: Any = LocalChatCompletion if order["chat"] else LocalCompletionsAPI

    class Asked(kind):  # type: ignore[misc]
        refused = ""

        async def amodel_call(
            self, session: Any, sem: Any, messages: Any, generate: bool = True, ctxlens: Any = None, gen_kwargs: Any = None, **_: Any
        ) -> list[Any]:
            given = copy.deepcopy(gen_kwargs)  # _create_payload changes it
            payload = self._create_payload(self.create_message(messages), generate=generate, gen_kwargs=given, seed=self._seed)
            async with sem, session.post(self.base_url, json=payload, headers=self.header) as response:
                body = await response.read()
                if response.status not in _REFUSED:
                    response.raise_for_status()
            if response.status in _REFUSED:
                self.refused = self.refused or refusal(response.status, body)
                return [refusal(response.status, body) if generate else (math.nan, False)]
            reply = json.loads(body)
            if generate:
                text = answer_of(reply, order["chat"])
                return [NOTHING if text is None else text]
            try:
                [found] = self.parse_logprobs(outputs=reply, tokens=messages, ctxlens=ctxlens) if one_choice(reply) else [(math.nan, False)]
            except (AssertionError, LookupError, TypeError, ValueError, AttributeError):
                found = (math.nan, False)
            return [found]

    chosen: dict[str, Any] = {"tokenizer": order["tokenizer"]} if order["tokenizer"] else {}
    return Asked(
        model=order["model"],
        base_url=f"{order['url']}/v1/{'chat/completions' if order['chat'] else 'completions'}",
        num_concurrent=order["concurrency"],
        max_retries=3,
        timeout=order["request_timeout"],
        tokenizer_backend="huggingface" if order["tokenizer"] else "None",
        tokenized_requests=False,
        **chosen,
    )


def one_choice(reply: Any) -> dict[str, Any] | None:
    """Return the choice of a reply that has exactly one."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    return choices[0] if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict) else None


def answer_of(reply: Any, chat: bool) -> str | None:
    """Return the text of a reply of the API. None if it has not exactly one choice with a text."""
    choice = one_choice(reply) or {}
    given = choice.get("message") if chat else choice
    text = given.get("content" if chat else "text") if isinstance(given, dict) else None
    return text if isinstance(text, str) else None


def refusal(status: int, body: bytes) -> str:
    """Return what stands for the answer to a document that the server refuses."""
    return f"{NOTHING}HTTP {status}\n{body[: 4 * _LONGEST_REASON].decode(errors='replace')[:_LONGEST_REASON]}"


def answered(draws: Sequence[Any], refused: str) -> dict[str, Any]:
    """Return the answer to a document, or why there is none: one draw without a text or without probabilities is enough.

    `refused` stands for the first document that the server refused, because the probabilities of a document have no place for a reason.
    """
    for one in draws:
        if isinstance(one, str) and one.startswith(NOTHING):
            error, _, said = one.removeprefix(NOTHING).partition("\n")
            return {"answer": None, "error": error or "no text in the answer", "said": said}
        if isinstance(one, list | tuple) and one and math.isnan(_number(one[0]) or 0.0):
            error, _, said = refused.removeprefix(NOTHING).partition("\n")
            return {"answer": None, "error": error or "no probabilities in the answer", "said": said}
    return {"answer": _text(draws[0] if len(draws) == 1 else draws)}


def _asked(tasks: dict[str, Any], manager: Any, order: dict[str, Any]) -> dict[str, Any]:
    from lm_eval import simple_evaluate

    model = _model(order)
    found = simple_evaluate(
        model=model,
        tasks=[order["task"]],
        task_manager=manager,
        num_fewshot=order["few_shot"],
        limit=order["limit"],
        gen_kwargs=order["generation"] or None,
        apply_chat_template=order["chat"],
        log_samples=True,
        bootstrap_iters=0,
    )
    rows, metrics = [], dict[str, list[str]]()
    for name, samples in found["samples"].items():
        decides, chosen = of_filter(samples, filters(tasks[name]), order["filter"])
        metrics[name] = in_order(dict.fromkeys(metric for one in chosen for metric in one["metrics"]), named_metrics(tasks[name]))
        higher = found.get("higher_is_better", {}).get(name) or {}
        refuse_lower(name, order["metric"] or next(iter(metrics[name]), ""), higher)
        rows += [
            {
                "task": name,
                "document": one["doc_id"],
                "filter": decides,
                "messages": _messages(one["arguments"][0][0]),
                "target": _text(one["target"]),
                "group": group_of(one["doc"], order["group"]) if order["group"] else None,
                "scores": {key: _number(one[key]) for key in one["metrics"]},
                **answered([answer for draws in one["resps"] for answer in draws], model.refused),
            }
            for one in chosen
        ]
    temperature = max((_temperature(task) for task in tasks.values()), default=0.0)
    return {"rows": rows, "metrics": metrics, "temperature": order["generation"].get("temperature", temperature)}


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
    return _number(given.get("temperature")) or 0.0


if __name__ == "__main__":
    main()
