"""Tests of what the process of lm-eval decides without lm-eval: how replies are read, and what is refused."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.gates.suites import lm_eval_driver as driver
from tests.real_lm_eval import prompt_logprobs, served

ORDER: dict[str, Any] = {"tokenizer": None, "chat": True, "filter": None, "metric": None, "group": None, "limit": None}


class Task:
    """A task as the driver sees one of lm-eval."""

    def __init__(self, metrics: dict[str, bool], kind: str = "generate_until", scored: dict[str, float] | None = None) -> None:
        self._config = {"output_type": kind, "metric_list": [{"metric": name} for name in metrics]}
        self._higher, self._scored = metrics, scored if scored is not None else dict.fromkeys(metrics, 0.0)
        self._filters = [SimpleNamespace(name=1), SimpleNamespace(name="strict")]
        self.eval_docs = [{"topic": "a"}, {"topic": "a"}, {"topic": None}, {}]

    def get_config(self, key: str) -> Any:
        return self._config.get(key)

    def higher_is_better(self) -> dict[str, bool]:
        return self._higher

    def process_results(self, _document: Any, _results: Any) -> dict[str, float]:
        return self._scored


def chosen(content: Any, count: int = 1) -> dict[str, Any]:
    return {"choices": [{"index": n, "message": {"content": content}, "text": content} for n in range(count)]}


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (chosen("yes"), "yes"),
        (chosen(""), ""),
        (chosen(None), None),
        (chosen([{"type": "text"}]), None),
        (chosen("yes", 2), None),
        (chosen("yes", 0), None),
        ({"choices": [{"message": {}}]}, None),
        ({"choices": ["yes"]}, None),
        ({"choices": {"0": "yes"}}, None),
        ({"error": {"message": "overloaded"}}, None),
        ([], None),
        (None, None),
    ],
)
def test_only_a_reply_with_exactly_one_text_is_an_answer(reply: Any, answer: str | None, chat: bool) -> None:
    assert driver.answer_of(reply, chat) == answer


def test_a_document_has_an_answer_only_if_each_draw_has_one() -> None:
    assert driver.answered(["yes"], "") == {"answer": "yes"}
    assert driver.answered([""], "") == {"answer": ""}
    assert driver.answered(["yes", driver.NOTHING], "")["answer"] is None
    assert driver.answered([(-1.0, True), (-2.0, False)], "")["answer"] == "[[-1.0, true], [-2.0, false]]"
    missing = {"answer": None, "error": "no probabilities in the answer", "said": ""}
    assert driver.answered([(-1.0, True), (math.nan, False)], "") == missing
    refused = driver.refusal(400, b'{"error": "too long"}')
    told = {"answer": None, "error": "HTTP 400", "said": '{"error": "too long"}'}
    assert driver.answered([refused], "") == told
    assert driver.answered([(math.nan, False)], refused) == told
    assert len(driver.refusal(400, b"x" * 100_000)) < 3000


def test_a_metric_of_which_less_is_better_is_refused() -> None:
    with pytest.raises(driver.Refused, match="the lower wer of the task t is, the better") as found:
        driver.refuse({"t": Task({"wer": False, "acc": True})}, ORDER)
    assert found.value.kind == "metric"
    driver.refuse({"t": Task({"wer": False, "acc": True})}, ORDER | {"metric": "acc"})
    with pytest.raises(driver.Refused, match="the lower wer"):
        driver.refuse({"t": Task({"acc": True, "wer": False})}, ORDER | {"metric": "wer"})


def test_the_first_metric_is_that_of_the_configuration() -> None:
    assert driver.in_order({"aa": 1, "zz": 1, "other": 1}, ["zz", "aa"]) == ["zz", "aa", "other"]


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"metric": "nope"}, "metric", "the task t has no metric 'nope'; it has acc"),
        ({"filter": "nope"}, "filter", "the task t has no filter 'nope'; it has 1, strict"),
        ({"tokenizer": "/nowhere/at/all"}, "tokenizer", "there is no folder /nowhere/at/all"),
    ],
)
def test_settings_that_name_what_the_task_lacks_are_refused(change: dict[str, Any], kind: str, said: str) -> None:
    with pytest.raises(driver.Refused, match=said) as found:
        driver.refuse({"t": Task({"acc": True})}, ORDER | change)
    assert found.value.kind == kind
    driver.refuse({"t": Task({"acc": True})}, ORDER | {"metric": "acc", "filter": "1"})


def test_a_metric_of_a_task_that_cannot_score_beforehand_is_not_refused() -> None:
    task = Task({"rouge": True}, scored={"rouge1": 0.0})
    driver.refuse({"t": task}, ORDER | {"metric": "rouge1"})
    task.eval_docs = []
    driver.refuse({"t": task}, ORDER | {"metric": "rouge2"})


def test_documents_without_the_field_of_a_group_are_observations_by_themselves() -> None:
    documents = {"t": Task({"acc": True}).eval_docs}
    assert driver.counted(documents, ORDER | {"group": "topic"}) == {"documents": {"t": 4}, "groups": {"t": 3}}
    assert driver.counted(documents, ORDER | {"group": "topic", "limit": 2}) == {"documents": {"t": 2}, "groups": {"t": 1}}
    assert driver.counted(documents, ORDER) == {"documents": {"t": 4}, "groups": {"t": 4}}
    with pytest.raises(driver.Refused, match="no document has the field 'topicc'"):
        driver.counted(documents, ORDER | {"group": "topicc"})
    assert driver.group_of({"topic": None}, "topic") is None
    assert driver.group_of({"topic": 3}, "topic") == "3"


def test_data_of_an_address_are_refused() -> None:
    for given in ("http://x/y.jsonl", {"data_files": {"test": ["a", "s3://b"]}}):
        with pytest.raises(driver.Refused, match="nothing is downloaded") as found:
            driver.refuse_addresses(given)
        assert found.value.kind == "task"
    driver.refuse_addresses([("json",), {"data_files": {"test": "/data/a.jsonl"}, "split": None}])


def test_a_missing_local_file_is_no_data_set_of_others() -> None:
    class DatasetNotFoundError(FileNotFoundError):
        pass

    assert not driver.is_data(FileNotFoundError("Unable to find '/nope/x.jsonl'"))
    assert driver.is_data(DatasetNotFoundError("x"))
    assert driver.is_data(ValueError("Couldn't find cache for x for config 'y'"))


def test_what_is_written_is_plain_json() -> None:
    found = driver.plain({"a\ud800": ["\ud800", math.nan, math.inf, 1.5, None, True], 1: ("ü",)})
    assert found == {"a?": ["?", None, None, 1.5, None, True], "1": ["ü"]}
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()


def test_a_server_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(driver.time, "sleep", pauses.append)
    replies = [503, 429]

    def busy(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return (replies.pop(0), {}) if replies else prompt_logprobs(body, "b")

    order = {"model": "m"}
    with served(busy) as url:
        driver._refuse_without_logprobs(order | {"url": url})
    assert pauses == [1, 2]
    with served(lambda *_: (503, {})) as url, pytest.raises(driver.Refused, match="HTTP 503, also after 15 s") as found:
        driver._refuse_without_logprobs(order | {"url": url})
    assert found.value.kind == "failed"
    with served(lambda *_: (404, {})) as url, pytest.raises(driver.Refused, match="HTTP 404") as found:
        driver._refuse_without_logprobs(order | {"url": url})
    assert found.value.kind == "logprobs"


def test_a_refusal_is_found_behind_other_errors() -> None:
    def fails(_order: dict[str, Any]) -> dict[str, Any]:
        try:
            raise driver.Refused("data", "the data punkt of nltk")
        except driver.Refused as error:
            raise ValueError("wrapped") from error

    assert driver._refusal(ValueError()) is None
    with pytest.raises(ValueError, match="wrapped") as found:
        fails({})
    refused = driver._refusal(found.value)
    assert refused is not None
    assert refused.kind == "data"


def test_the_samples_of_one_filter_decide() -> None:
    samples = [{"filter": name, "doc_id": document} for document in (0, 1) for name in ("strict", "flexible")]
    for given, decides in ((None, "strict"), ("flexible", "flexible")):
        name, chosen = driver.of_filter(samples, ["strict", "flexible"], given)
        assert (name, [(one["filter"], one["doc_id"]) for one in chosen]) == (decides, [(decides, 0), (decides, 1)])
    assert driver.of_filter([{"filter": "none"}], [], None) == ("none", [{"filter": "none"}])
