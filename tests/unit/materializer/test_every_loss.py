"""A freeze in which evidence is lost for every cause: each is counted, and `ratchet explain` has words for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.flows.core import data_notes
from ratchet.materializer.datasets import LakeDatasets
from tests.unit.materializer.conftest import NOW, make_datasets, make_loop
from tests.unit.materializer.faults import BETWEEN, FAULTS, GOLDEN_TEXT, LEFT, RIGHT, faulty
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans
from tests.unit.materializer.small_datasets import HELD, TRAIN

APPLICATION, OTHER = (Sender(name=name, roles=(Role.TRACES, Role.FEEDBACK)) for name in ("application", "other"))
SECOND = 1_000_000_000
HERE = {"metadata__region": "eu", "metadata__confidentiality": "low"}


def send(datasets: LakeDatasets, sender: Sender | None, *requests: dict[str, Any]) -> None:
    """Ingest requests of a sender; None: files of the operator."""
    datasets.ingest(replace(batch(*requests), sender=sender))


def twice(n: int, prompt: str, answer: str = "A: 3", events: Sequence[Any] = (), **more: Any) -> list[dict[str, Any]]:
    """Return spans of two users with one prompt, so that it is not rare. The second answer is another one."""
    common = {**HERE, "metadata__reference": "7", **more}
    return [span(n, prompt, answer, events, **common), span(n + 1, prompt, f"{answer}0", **common)]


def losing(folder: Path) -> LakeDatasets:
    """Return datasets into which evidence was ingested that is lost for every cause."""
    (folder / "golden.jsonl").write_text(json.dumps({"question": GOLDEN_TEXT, "reference": "5"}) + "\n")
    rules = {"regions": ["eu"], "confidentiality": ["low"], "min_users": 2, "max_chars": 2000}
    datasets = make_datasets(folder, make_loop(governance=rules, holdout={"golden": "golden.jsonl"}, snapshot={"newcomer_days": 7}))
    rated, copied = evaluation("user_feedback", 1.0, user__id="user-1"), evaluation("user_copied", user__id="user-1")
    picture = {"type": "uri", "modality": "image", "uri": "https://example.test/a.png"}
    image = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "what is it?"}, picture]}])
    items = [
        *twice(1, TRAIN[0], "A: 7", [rated, copied]),
        *twice(3, TRAIN[0], "A: 7", at=T0 + SECOND, metadata__reference="8"),  # equal traces, and newer right answers
        *twice(5, TRAIN[1], ratchet__origin="probe"),
        *twice(7, TRAIN[1], metadata__consent=False),
        *twice(9, TRAIN[1], metadata__region="us"),
        *twice(11, TRAIN[1], metadata__confidentiality="high"),
        *twice(13, gen_ai__input__messages=image, prompt=""),
        *twice(15, "x" * 3000),
        span(17, TRAIN[2], "A: 3", metadata__reference="1", **HERE),  # of one user only
        *twice(19, HELD),
        *twice(21, GOLDEN_TEXT),
        *twice(23, GOLDEN_TEXT.replace("parcel3", "changed")),
        *twice(25, LEFT),
        *twice(27, RIGHT),
        *twice(29, BETWEEN),
        *twice(37, TRAIN[7], metadata__reference="ask kim@example-mail.com"),
        *twice(31, TRAIN[3], events=[evaluation("user_correction", text="A: 1", user__id="user-31")]),
        *twice(33, TRAIN[3], "A: 1", [evaluation("user_correction", text="A: 2", user__id="user-33")]),
    ]
    items += [
        faulty(40 + n, TRAIN[4], reason, (evaluation("user_feedback", 1.0, user__id=f"user-{40 + n}"),), **HERE)
        for n, reason in enumerate((*FAULTS, *FAULTS))
    ]
    reviewed = [log(n, evaluation("reviewer_reference", text="6", user__id="reviewer")) for n in (13, 35)]
    send(datasets, APPLICATION, spans(*items, *twice(35, TRAIN[5])))
    send(datasets, None, logs(*reviewed, log(999, evaluation("reviewer_reference", text="6", user__id="reviewer"))))
    again = evaluation("user_feedback", 0.0, at=T0 + SECOND, user__id="user-1")
    later = [
        log(37, evaluation("user_correction", text="ask anna@example-mail.com", user__id="user-37")),
        log(1, evaluation("user_feedback", 1.0, user__id="somebody")),
        log(1, again),
        log(2, evaluation("user_feedback", 1.0, user__id="user-2")),
    ]
    send(datasets, APPLICATION, logs(*later))
    send(datasets, OTHER, logs(log(2, evaluation("user_feedback", 0.0, user__id="user-2"))))
    refusal = evaluation("user_consent", 0.0, user__id="user-35") | {"eventName": "gen_ai.evaluation.result"}
    send(datasets, APPLICATION, logs(log(35, evaluation("user_feedback", 1.0, user__id="user-35")), refusal))
    datasets.clock.sleep(8 * 86_400)
    send(datasets, APPLICATION, spans(*twice(60, TRAIN[6], events=[evaluation("user_feedback", 1.0, user__id="user-60")])))
    return datasets


@pytest.mark.slow
def test_every_cause_of_a_loss_is_counted_and_has_words(tmp_path: Path) -> None:
    datasets = losing(tmp_path)
    counts = datasets.freeze("s", NOW + timedelta(days=9), datasets.edition(1)).counts
    named = {"out": set(data_notes.RULES), "reference": set(data_notes._OF_REFERENCES), "feedback": set(data_notes._OF_FEEDBACK)}
    found = {kind: {name.partition(":")[2] for name in counts if name.startswith(f"{kind}:")} for kind in named}
    assert found["out"] == named["out"] - {"holdout", "empty_response"}, "the holdout has a count of its own; ingest takes no empty answers"
    assert found["reference"] - {"used"} <= named["reference"]
    assert found["feedback"] - {"used"} <= named["feedback"]
    own = named["feedback"] - set(data_notes.RULES) - {"teacher"}  # training_sets/test_taught.py has answers of teachers
    assert own <= found["feedback"]
    assert all(counts[f"out:{reason}"] for reason in found["out"])
    assert (counts["reference:masked_answer"], counts["feedback:masked_answer"]) == (2, 1)
    assert all(data_notes.count_words(name) != name for name in counts)
