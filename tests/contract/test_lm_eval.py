"""Suites whose tasks the real lm-evaluation-harness asks: through the embedded server, and through servers whose answers are known."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ratchet.contracts.errors import ConfigError, Inconclusive, RatchetError, Retryable, Unreachable
from ratchet.contracts.evaluation import Result
from ratchet.contracts.fakes import MemoryArtifacts, fake_model
from ratchet.contracts.ids import canonical
from ratchet.contracts.loop import GateSettings, SuiteSettings
from ratchet.contracts.model import model_ref
from ratchet.contracts.serving import Endpoint, ModelVersion
from ratchet.gates.checks import Suites
from ratchet.gates.model_client import HttpModelClient
from ratchet.gates.suites.lm_eval import LmEvalSuite
from ratchet.local.server import EmbeddedServer
from ratchet.runtime.artifacts import FolderArtifacts
from tests.real_lm_eval import DOCUMENTS, GENERATES, chat, prompt_logprobs, real_lm_eval, served, write_gsm8k, write_task, write_tasks
from tests.tiny_adapter import write_adapter
from tests.toy_line import write_model
from tests.unit.gates.reports import report as a_report
from tests.unit.gates.scripted import edition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RECORDED = Path(__file__).resolve().parents[1] / "unit" / "gates" / "suites" / "recorded"
QUESTION = "Is the red near the blue?"


def suite(place: Path, task: str, artifacts: Any = None, **changes: Any) -> LmEvalSuite:
    """Return the suite of one of the tasks of `write_tasks`."""
    write_tasks(place / "tasks")
    data = {"lm_eval": {"task": task, "folder": "tasks", "python": real_lm_eval(), **changes}, "margin": 0.2}
    settings = SuiteSettings.model_validate(data)
    assert settings.lm_eval is not None
    return LmEvalSuite("own", settings, settings.lm_eval, place, artifacts or MemoryArtifacts())


def side(name: str, url: str) -> Any:
    return fake_model(name), HttpModelClient(Endpoint(tag=f"v-{name}", url=url, model="m"))


def asked(one: LmEvalSuite, champion: str, candidate: str) -> Any:
    return one.ask(edition(MemoryArtifacts()), (side("old", champion), side("new", candidate)), lambda *_: None, 0.95)


def right(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return chat("yes" if int(body["messages"][-1]["content"].split()[1]) % 2 == 0 else "no")


def constant(_path: str, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return chat("yes")


def test_a_loss_is_found_and_paired_by_document(tmp_path: Path) -> None:
    artifacts = MemoryArtifacts()
    with served(right) as good, served(constant) as worse:
        found = asked(suite(tmp_path, "even", artifacts), good, worse)
    assert (found.count.asked, found.comparison.champion, found.comparison.candidate) == (DOCUMENTS, 1.0, 0.5)
    assert found.told.startswith("own (lm-eval ")
    assert "even exact_match (none)): 100.0% → 50.0% (n 40)" in found.told
    settings = SuiteSettings.model_validate({"lm_eval": {"task": "even"}, "margin": 0.2})
    assert Suites(GateSettings(suites={"own": settings})).check(a_report(suites=(found,))).result is Result.FAIL
    rows = [json.loads(line) for line in artifacts.get(found.answers).splitlines()]
    assert rows[1]["prompt"] == [{"role": "user", "content": "Is 1 even?"}]
    assert (rows[1]["champion"]["answer"], rows[1]["candidate"]["answer"], rows[1]["reference"]) == ("no", "yes", "no")


def test_documents_with_the_same_field_are_one_observation(tmp_path: Path) -> None:
    with served(right) as good, served(constant) as worse:
        found = asked(suite(tmp_path, "even", group="topic", limit=30, few_shot=1), good, worse)
    assert (found.count.asked, found.count.clusters, found.comparison.n) == (30, 15, 15)


def test_multiple_choice_is_asked_where_the_server_returns_the_probabilities_of_a_prompt(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    _word_tokenizer(tokenizer)
    one = suite(tmp_path, "choice", chat=False, tokenizer="tokenizer")
    with served(lambda _, body: prompt_logprobs(body, "yes")) as yes, served(lambda _, body: prompt_logprobs(body, "no")) as no:
        found = asked(one, yes, no)
        assert (found.comparison.champion, found.comparison.candidate, found.comparison.n) == (0.5, 0.5, DOCUMENTS)
    with (
        served(lambda *_: (404, {"detail": "Not Found"})) as without,
        pytest.raises(ConfigError, match=r"/v1/completions answers HTTP 404"),
    ):
        asked(suite(tmp_path, "choice", chat=False, tokenizer="tokenizer"), without, without)
    ignores = {"choices": [{"index": 0, "text": "x", "logprobs": None}]}
    with served(lambda *_: (200, ignores)) as other, pytest.raises(ConfigError, match="does not return the probabilities of the prompt"):
        asked(suite(tmp_path, "choice", chat=False, tokenizer="tokenizer"), other, other)


@pytest.mark.parametrize(
    ("task", "changes", "error", "said"),
    [
        ("code", {}, ConfigError, r"executes the answers as programs \(unsafe_code\); Ratchet does not run it"),
        ("choice", {}, ConfigError, "needs the probabilities of the given answers; set chat = false"),
        ("choice", {"chat": False}, ConfigError, "set tokenizer to the folder"),
        ("rolling", {}, ConfigError, "which has no right and wrong answers"),
        ("none", {}, ConfigError, "there is no task 'none'; known: away, choice, code, even, rolling"),
        ("even", {"folder": "nowhere"}, ConfigError, "there is no folder .*nowhere; correct task or folder"),
        ("away", {}, Retryable, r"the data of the task away are not on this machine .*fetch them .*TaskManager\(include_path="),
        ("even", {"python": sys.executable}, Retryable, "has no lm-eval"),
        ("even", {"python": "no-such-python"}, Retryable, "there is no program 'no-such-python'"),
    ],
)
def test_what_cannot_run_is_refused_before_a_model_is_asked(
    tmp_path: Path, task: str, changes: dict[str, Any], error: type[RatchetError], said: str
) -> None:
    with pytest.raises(error, match=said):
        suite(tmp_path, task, **changes).look()


def test_a_task_that_comes_with_lm_eval_and_executes_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="executes the answers as programs"):
        suite(tmp_path, "humaneval", folder=None).look()


def test_the_documents_are_counted_without_a_model(tmp_path: Path) -> None:
    assert suite(tmp_path, "even").look().documents == {"even": DOCUMENTS}
    assert suite(tmp_path, "even", group="topic", limit=30).look().groups == {"even": 15}


def test_a_run_that_fails_or_takes_too_long_is_no_evidence(tmp_path: Path) -> None:
    with served(lambda *_: (400, {"error": {"message": "no"}})) as refusing, served(right) as good:
        with pytest.raises(Inconclusive, match=r"the server of v-old refuses all 40 documents: HTTP 400"):
            asked(suite(tmp_path, "even"), refusing, good)
        with pytest.raises(Inconclusive, match=r"did not end within 0\.5 s; raise timeout"):
            asked(suite(tmp_path, "even", timeout=0.5), good, good)
    with pytest.raises(Unreachable, match="refuses connections"):
        asked(suite(tmp_path, "even", limit=2), "http://127.0.0.1:1", "http://127.0.0.1:1")


def test_an_answer_without_text_counts_against_the_candidate_alone(tmp_path: Path) -> None:
    def silent(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return chat(None) if "Is 4 even?" in body["messages"][-1]["content"] else right(_path, body)

    with served(right) as good, served(silent) as other:
        found = asked(suite(tmp_path, "even"), good, other)
        assert (found.count.candidate_failed, found.comparison.n, found.comparison.candidate) == (1, DOCUMENTS, pytest.approx(39 / 40))
        found = asked(suite(tmp_path, "even"), other, good)
        assert (found.count.champion_failed, found.comparison.n) == (1, DOCUMENTS - 1)


def test_a_malformed_reply_and_a_refused_document_are_missing_answers(tmp_path: Path) -> None:
    """Without texts and with several, lm-eval itself would give the answers to other documents."""
    odd: dict[str, tuple[int, dict[str, Any]]] = {
        "Is 3 even?": (200, {"choices": [*chat("yes")[1]["choices"], {"index": 1, "message": {"content": "no"}}]}),
        "Is 4 even?": (200, {"choices": []}),
        "Is 5 even?": (200, {"error": {"message": "overloaded"}}),
        "Is 6 even?": (200, {"choices": [{"index": 0, "message": {"role": "assistant"}}]}),
        "Is 7 even?": (400, {"error": {"message": "maximum context length exceeded: 4097 tokens"}}),
    }

    def oddly(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return odd.get(body["messages"][-1]["content"]) or right(_path, body)

    with served(right) as good, served(oddly) as other:
        found = asked(suite(tmp_path, "even"), good, other)
    assert (found.count.candidate_failed, found.comparison.candidate) == (5, pytest.approx(35 / 40))
    assert found.failures == {
        "candidate:no text in the answer": 4,
        "candidate:HTTP 400: maximum context length exceeded: 4097 tokens": 1,
    }


def test_a_choice_without_probabilities_is_a_missing_answer(tmp_path: Path) -> None:
    _word_tokenizer(tmp_path / "tokenizer")

    def odd(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, found = prompt_logprobs(body, "yes")
        if "Is 4 even?" in body["prompt"]:
            return 422, {"error": {"message": "prompt too long"}}
        return (status, {"choices": found["choices"] * 2}) if "Is 5 even?" in body["prompt"] else (status, found)

    with served(odd) as url:
        found = asked(suite(tmp_path, "choice", chat=False, tokenizer="tokenizer"), url, url)
    assert (found.count.champion_failed, found.count.candidate_failed, found.comparison.n) == (2, 2, DOCUMENTS - 2)
    assert "candidate:HTTP 422: prompt too long" in found.failures


PROGRAM = """import nltk
def scores(doc, results):
    return {"zz": 1.0 * (results[0].split()[0] == doc["answer"]), "aa": 1.0, "nan": float("nan")}
def loads(doc, results):
    nltk.download("punkt")
"""
SCORES = """doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n"]
process_results: !function own.scores
filter_list:
  - name: 1
    filter:
      - function: take_first
metric_list:
  - metric: zz
    aggregation: mean
    higher_is_better: true
  - metric: aa
    aggregation: mean
    higher_is_better: true
  - metric: nan
    aggregation: mean
    higher_is_better: false
"""


def test_odd_values_of_a_task_do_not_end_the_run(tmp_path: Path) -> None:
    """Its names are numbers, values are not finite, answers have lone surrogates, and its folder stays as it is."""
    one = suite(tmp_path, "odd")
    (tmp_path / "tasks" / "own.py").write_text(PROGRAM)
    write_task(tmp_path / "tasks", "odd", SCORES)
    before = one._identity()

    def surrogate(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text = right(_path, body)[1]["choices"][0]["message"]["content"]
        return chat(f"{text} \ud800")

    with served(surrogate) as url:
        found = asked(one, url, url)
    assert "odd zz (1)): 100.0% → 100.0%" in found.told, "the first metric of the task, not that of the alphabet"
    assert one._identity() == before
    assert list((tmp_path / "tasks").rglob("*.pyc")) == []


@pytest.mark.parametrize(
    ("more", "changes", "error", "said"),
    [
        (SCORES, {"metric": "nan"}, ConfigError, "the lower nan of the task odd is, the better, .*; set metric to one"),
        (SCORES, {"metric": "nope"}, ConfigError, "the task odd has no metric 'nope'; it has zz, aa, nan"),
        (SCORES, {"filter": "nope"}, ConfigError, "the task odd has no filter 'nope'; it has 1; correct filter"),
        (SCORES, {"group": "nope"}, ConfigError, "no document has the field 'nope'; correct group"),
        (SCORES, {"tokenizer": "nope"}, ConfigError, "there is no folder .*nope; set tokenizer"),
        (f"{GENERATES}\n    higher_is_better: false\n    aggregation: mean", {}, ConfigError, "the lower exact_match"),
        (SCORES.replace("own.scores", "gone.scores"), {}, ConfigError, "; correct task or folder"),
        ("include: gone.yaml", {}, ConfigError, r"there is no task 'odd'; .*; these files cannot be read: odd\.yaml \("),
    ],
)
def test_settings_and_tasks_that_do_not_fit_are_refused(
    tmp_path: Path, more: str, changes: dict[str, Any], error: type[RatchetError], said: str
) -> None:
    one = suite(tmp_path, "odd", **changes)
    (tmp_path / "tasks" / "own.py").write_text(PROGRAM)
    write_task(tmp_path / "tasks", "odd", more)
    with pytest.raises(error, match=said):
        one.look()


def test_no_data_are_loaded_from_an_address_and_a_missing_file_is_no_matter_of_terms(tmp_path: Path) -> None:
    requests: list[str] = []

    def counted(path: str, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        requests.append(path)
        return 200, {}

    one = suite(tmp_path, "odd")
    with served(counted) as url:
        write_task(tmp_path / "tasks", "odd", data=f"{url}/x.jsonl")
        with pytest.raises(ConfigError, match=r"the task loads .*, and nothing is downloaded"):
            one.look()
    assert requests == []
    write_task(tmp_path / "tasks", "odd", data="/nowhere/at/all.jsonl")
    with pytest.raises(ConfigError, match=r"at/all\.jsonl.*; correct task or folder"):
        one.look()
    (tmp_path / "tasks" / "own.py").write_text(PROGRAM)
    write_task(tmp_path / "tasks", "odd", SCORES.replace("own.scores", "own.loads"))
    with pytest.raises(Retryable, match=r"are not on this machine \(the data punkt of nltk\)"):
        one.look()


def test_an_empty_answer_is_a_wrong_answer(tmp_path: Path) -> None:
    with served(right) as good, served(lambda *_: chat("")) as empty:
        found = asked(suite(tmp_path, "even", limit=20), good, empty)
    assert (found.count.candidate_failed, found.comparison.candidate) == (0, 0.0)


def test_after_a_crash_only_the_run_that_was_not_complete_is_repeated(tmp_path: Path) -> None:
    requests: list[str] = []

    def counted(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        requests.append(body["messages"][-1]["content"])
        return right(_path, body)

    artifacts = FolderArtifacts(tmp_path / "artifacts")
    with served(counted) as champion, served(lambda *_: (500, {})) as broken, served(right) as good:
        with pytest.raises(Inconclusive):
            asked(suite(tmp_path, "even", artifacts), champion, broken)
        assert len(requests) == DOCUMENTS
        first = asked(suite(tmp_path, "even", artifacts), champion, good)
        again = asked(suite(tmp_path, "even", artifacts), champion, good)
        assert (len(requests), first) == (DOCUMENTS, again)


def test_the_process_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    """The one that asks is killed while the server still answers, so nothing but the closed input tells the process."""
    reached, never = threading.Event(), threading.Event()

    def waiting(_path: str, _body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        reached.set()
        never.wait(120)
        return chat("yes")

    one = suite(tmp_path, "even")
    with served(waiting) as url:
        asking = multiprocessing.get_context("fork").Process(target=asked, args=(one, url, url))
        asking.start()
        try:
            assert reached.wait(120)
            [child] = psutil.Process(asking.pid).children()
            asking.kill()
            assert psutil.wait_procs([child], timeout=30)[1] == []
        finally:
            never.set()
            asking.join()


def test_no_secret_and_no_proxy_reaches_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nenv > {tmp_path}/environment\necho "$@" > {tmp_path}/arguments\nexec {real_lm_eval()} "$@"\n')
    program.chmod(0o755)
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "a-secret")
    assert suite(tmp_path, "even", python=str(program)).look().documents == {"even": DOCUMENTS}
    assert "a-secret" not in (tmp_path / "environment").read_text()
    assert "HF_HUB_OFFLINE=1" in (tmp_path / "environment").read_text()
    assert "documents" not in (tmp_path / "arguments").read_text()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Endpoint, Endpoint]]:
    """The embedded server with a tiny model that answers "no", and with an adapter that answers "yes"."""
    real_lm_eval()
    folder = tmp_path_factory.mktemp("embedded")
    artifacts = FolderArtifacts(folder / "artifacts")
    model = write_model(folder)
    version = ModelVersion(line="l", number=0, tag="v-tiny", model=model_ref(model, artifacts.put_folder(model)), cycle=None)
    adapter = write_adapter(version, artifacts, folder / "adapter", "v-adapter", QUESTION, "yes")
    server = EmbeddedServer(folder / "serving", artifacts, "assistant", threads=1)
    yield server.ensure(version), server.ensure(adapter)
    for endpoint in server.running():
        server.stop(endpoint.tag)


def test_both_models_are_asked_through_the_embedded_server(embedded: tuple[Endpoint, Endpoint], tmp_path: Path) -> None:
    one = suite(tmp_path, "even")
    rows = [{"question": f"{QUESTION} {n}", "answer": "no"} for n in range(DOCUMENTS)]
    (tmp_path / "tasks" / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sides = [(fake_model(name), HttpModelClient(endpoint)) for name, endpoint in zip(("old", "new"), embedded, strict=True)]
    found = one.ask(edition(MemoryArtifacts()), (sides[0], sides[1]), lambda *_: None, 0.95)
    assert (found.count.asked, found.count.champion_failed, found.count.candidate_failed) == (DOCUMENTS, 0, 0)
    assert found.comparison is not None
    assert found.comparison.champion > found.comparison.candidate
    wrong = suite(tmp_path, "choice", chat=False, tokenizer="tokenizer")
    _word_tokenizer(tmp_path / "tokenizer")
    with pytest.raises(ConfigError, match=r"/v1/completions answers HTTP 404; choose a task that generates its answers"):
        wrong.ask(edition(MemoryArtifacts()), (sides[0], sides[1]), lambda *_: None, 0.95)


@pytest.mark.parametrize("name", ["right", "constant"])
def test_the_recorded_runs_are_what_lm_eval_writes(tmp_path: Path, name: str) -> None:
    with served({"right": right, "constant": constant}[name]) as url:
        run = suite(tmp_path, "even", group="topic")._asked("champion", side(name, url)[1], lambda *_: None)
    file = RECORDED / f"{name}.json"
    if os.environ.get("RATCHET_RECORD"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(canonical(run.model_dump(mode="json")))
    recorded = json.loads(file.read_text())
    assert run.model_dump(mode="json", exclude={"version"}) == {key: value for key, value in recorded.items() if key != "version"}


def _word_tokenizer(folder: Path) -> None:
    """Write a tokenizer with one token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "Is", "even?", "yes", "no", *(str(n) for n in range(DOCUMENTS)), "Question:"]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[UNK]", "pad_token": "[UNK]"})
    )


@pytest.mark.parametrize(("filter_name", "few_shot"), [("flexible-extract", 5), ("strict-match", 0)])
def test_a_published_task_scores_the_answers_of_real_models(tmp_path: Path, filter_name: str, few_shot: int) -> None:
    """GSM8K as lm-eval publishes it, over a copy of its 1,319 test questions; it is known which answers of the two models are right."""
    artifacts = MemoryArtifacts()
    one = suite(tmp_path, "gsm8k", artifacts, filter=filter_name, few_shot=few_shot)
    answers = write_gsm8k(tmp_path / "tasks")

    def model(name: str) -> Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]:
        def answer(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            given = answers[_question(body["messages"])][name].text
            return chat(given if filter_name == "flexible-extract" else given.replace("\nA: ", "\n#### "))

        return answer

    with served(model("175b_verification")) as large, served(model("6b_finetuning")) as small:
        found = asked(one, large, small)
    assert found.told.startswith("own (lm-eval ")
    assert found.told.endswith(f", gsm8k exact_match ({filter_name})): 56.3% → 21.7% (n 1319)")
    rows = [json.loads(line) for line in artifacts.get(found.answers).splitlines()]
    assert len(rows) == len(answers) == 1319
    for row in rows:
        its = answers[_question(row["prompt"])]
        rewards = [row[side]["reward"] for side in ("champion", "candidate")]
        assert rewards == [its["175b_verification"].is_right, its["6b_finetuning"].is_right], row


def _question(prompt: list[dict[str, str]]) -> str:
    return prompt[-1]["content"].rpartition("Question: ")[2].removesuffix("\nAnswer:")
