"""Tests of the dataset card: its figures, its languages, and that it contains no text of a user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.ids import root_id
from ratchet.contracts.loop import PrivacySettings
from ratchet.contracts.steps import FreezeResult, PlanResult
from ratchet.flows.report.dataset_card import _examples, as_markdown, dataset_card
from ratchet.flows.report.languages import language_of
from ratchet.flows.report.story import Section, Table
from ratchet.materializer.training_sets.holdout import held_out
from tests.unit.flows.cycles import knowing
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import evaluation, span
from tests.unit.materializer.small_datasets import LATER, TRAIN, frozen
from tests.unit.materializer.training_sets.test_near_duplicates import sentence


def _cycle(tmp_path: Path, *items: Any) -> tuple[Any, Any]:
    datasets = make_datasets(tmp_path, make_loop(rewards=[{"name": "user_feedback"}]))
    snapshot = frozen(datasets, *items)
    training = datasets.assemble("t", snapshot, None)
    results = (FreezeResult.model_construct(snapshot=snapshot), PlanResult.model_construct(dataset=training))
    return knowing(*results, line="math", loop=datasets.loop), datasets.artifacts


@pytest.mark.slow
def test_the_card_counts_what_the_data_consist_of(tmp_path: Path) -> None:
    rated = [
        span(
            n + 1,
            TRAIN[n],
            f"private answer {n}",
            [evaluation("user_feedback", n % 2, user__id="ada")],
            user__id="ada",
            metadata__slice="arithmetic",
        )
        for n in range(4)
    ]
    masked = {text: text.replace("a@b.org", "[EMAIL_1]") for text in (f"question {n} of a@b.org?" for n in range(50))}
    asked = next(text for text, stored in masked.items() if not held_out(root_id([{"role": "user", "content": stored}]), "ratchet", 0.2))
    corrected = span(9, asked, "ask a@b.org", [evaluation("user_correction", text="private correction", user__id="eve")], user__id="eve")
    cycle, artifacts = _cycle(tmp_path, *rated, corrected)
    page = as_markdown("Card", dataset_card(cycle, artifacts))
    assert "6 answers. Deciding tier: feedback 4, verifiable 2." in page
    assert "Origin: correction 1, traffic 5." in page
    assert "| 0.9 to 1.0 | 3 | " in page
    assert "| 0.0 to 0.1 | 3 | " in page
    assert "2 users; the most active one has 4 answers (66.7%)." in page
    assert "| traces | 6 |" in page
    found = "replaced personal data at ingest: email 2, phone 0, card 0, iban 0, national_id 0, secret 0, ip 0. The rules (version 2-"
    assert found in page
    assert "do not mask: person, location; " in page
    assert "Training set " in page
    assert "private answer" in page
    assert page.count("| question ") == 5
    became = {line.split(" | ")[1]: line.split(" | ")[2] for line in page.splitlines() if line.startswith("| rated answer |")}
    assert sum(map(int, became.values())) == 4, "every rating is accounted for"
    assert any(what.startswith("nothing: ") for what in became)


@pytest.mark.slow
def test_the_card_says_how_many_demonstrations_of_near_duplicates_weigh_less(tmp_path: Path) -> None:
    one = next(text for text in map(sentence, range(99)) if not held_out(root_id([{"role": "user", "content": text}]), "ratchet", 0.2))
    corrected = [
        span(n, f"{one} {n}", "wrong", [evaluation("user_correction", text="Paris", user__id=f"user-{n}")], user__id=f"user-{n}")
        for n in range(1, 6)
    ]
    cycle, artifacts = _cycle(tmp_path, *corrected)
    facts = cycle.result(PlanResult).dataset.facts
    page = as_markdown("Card", dataset_card(cycle, artifacts))
    assert (facts.demonstrations, facts.repeats) == ({"correction": 5}, 5)
    assert "5 demonstrations weigh less, because near-duplicate prompts have the same answer" in page
    assert "| 0.4 to 0.5 | 5 | " in page, "2 of 5"


def test_examples_are_masked_also_where_the_stored_texts_are_not() -> None:
    prompt = json.dumps([{"role": "user", "content": "Who is a.b@uni-bonn.de?"}])
    sample = {"prompt_id": "p", "prompt": prompt, "answer": "a.b@uni-bonn.de is " + "x" * 300, "reward": None}
    (section,) = _examples([sample], PrivacySettings())
    assert section.table is not None
    assert section.table.rows[0][0] == "Who is [EMAIL_1]?"
    assert section.table.rows[0][1].startswith("[EMAIL_1] is xxx")
    assert len(section.table.rows[0][1]) == 200
    assert _examples([sample], PrivacySettings(mask=())) == []


def test_there_is_no_card_before_the_data_are_frozen() -> None:
    assert dataset_card(knowing(), None) == []  # type: ignore[arg-type]


def test_names_cannot_change_the_page() -> None:
    section = Section("Slices", (), Table(("slice", "number"), (("a|b\n# c <script>", "1"),)))
    assert "| a\\|b # c &lt;script> | 1 |" in as_markdown("Card", [section])


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("How do I restart the pod of this service?", "English"),
        ("Wie kann ich das Passwort für mein Konto ändern?", "German"),
        ("Comment est-ce que je peux changer le mot de passe?", "French"),
        ("¿Cómo puedo cambiar la contraseña de mi cuenta?", "Spanish"),
        ("Как мне перезапустить сервис?", "Cyrillic script"),
        ("如何重启服务？", "Chinese"),
        ("パスワードを変更するには？", "Japanese"),
        ("서비스를 다시 시작하려면?", "Korean"),
        ("12 + 5 = ?", "unknown"),
        ("", "unknown"),
        ("kubectl get pods", "unknown"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.slow
def test_an_unreadable_snapshot_has_no_card_on_the_page(tmp_path: Path) -> None:
    from ratchet.flows.report.page import _card

    cycle, artifacts = _cycle(tmp_path, span(1, TRAIN[0], "x"))
    assert _card(cycle, artifacts)
    snapshot = cycle.result(FreezeResult).snapshot
    lost = FreezeResult.model_construct(snapshot=snapshot.model_copy(update={"samples": "0" * 64}))
    assert _card(knowing(lost, line="math", loop=cycle.loop), artifacts) == []
    assert LATER.date() == snapshot.as_of.date()
