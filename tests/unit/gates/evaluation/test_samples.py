"""Tests of the evaluation with several sampled answers per prompt."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ratchet.contracts.data.datasets import HoldoutEdition, Label
from ratchet.contracts.data.records import Tier
from ratchet.contracts.evaluation import UNLIKE, ChatRequest, EarlierAnswers, EvalReport
from ratchet.contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from ratchet.contracts.ids import canonical, digest
from ratchet.contracts.loop import GateSettings
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from tests.unit.gates.scripted import Answer, Scripted, edition, name_of


def evaluated(
    artifacts: MemoryArtifacts,
    held: HoldoutEdition,
    old: Answer,
    new: Answer,
    settings: GateSettings,
    earlier: Sequence[EarlierAnswers] = (),
) -> tuple[EvalReport, Scripted, Scripted]:
    clients = Scripted(old), Scripted(new)
    evaluator = PairedEvaluator(artifacts, FakeRewards(), settings)
    sides = [(fake_model(name), client) for name, client in zip(("old", "new"), clients, strict=True)]
    return evaluator.evaluate(held, sides[0], sides[1], lambda *_: None, 0.95, earlier), *clients


def sometimes(side: str, right: float, failing: float = 0.0) -> Answer:
    """Return a model that answers by chance, but always alike to the same request."""

    def answer(request: ChatRequest) -> str | None:
        draw = random.Random(f"{side} {name_of(request)} {request.seed}")
        if draw.random() < failing:
            return None
        return "yes" if draw.random() < right else "no, " + "well " * draw.randrange(5)

    return answer


def rounded(value: Any) -> Any:
    """Round all numbers, so that a digest does not depend on the machine's last bits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 9) if isinstance(value, float) else value


def test_requests_rows_and_report_of_one_answer_per_prompt_stay_the_same() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, held=60, golden=50)
    first, _, _ = evaluated(artifacts, held, sometimes("a", 0.9, 0.03), sometimes("b", 0.5), GateSettings(looks=1))
    past = [EarlierAnswers(version="v-a", answers=first.answers)]
    report, old, new = evaluated(artifacts, held, sometimes("b", 0.6, 0.05), sometimes("c", 0.7, 0.08), GateSettings(looks=1), past)
    assert old.asked == new.asked
    requests = [request.model_dump(mode="json") for request in old.asked]
    rows = [json.loads(row) for row in artifacts.get(report.answers).splitlines()]
    found = [
        digest(canonical(rounded(value)))[:16]
        for value in (requests, rows, report.model_dump(mode="json", exclude={"answers", "cut", "safety"}))
    ]
    assert found == ["a1074cd6970de990", "a79128617a92e407", "32a4cd76e0cbceab"]


SAMPLED = GateSettings(samples=3, temperature=0.8, min_prompts=20)


def always(_request: ChatRequest) -> str:
    return "yes"


def test_each_prompt_is_asked_with_seeds_that_both_models_and_every_repeat_share() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, golden=5)
    _, old, new = evaluated(artifacts, held, sometimes("a", 0.5), sometimes("b", 0.5), SAMPLED)
    _, again, _ = evaluated(artifacts, held, sometimes("c", 0.5), sometimes("b", 0.5), SAMPLED)
    assert old.asked == new.asked == again.asked
    assert len({request.seed for request in old.asked}) == len(old.asked) == 3 * 45
    assert {request.temperature for request in old.asked} == {0.8}
    assert [name_of(request) for request in old.asked[:4]] == ["Q1 "] * 3 + ["q1"]
    assert all(request.seed is not None and 0 <= request.seed < 2**31 for request in old.asked), "each server accepts such a seed"
    _, single, _ = evaluated(artifacts, held, sometimes("a", 0.5), sometimes("b", 0.5), GateSettings(temperature=0.8))
    assert single.asked == old.asked[::3], "the first draw does not depend on the number of draws"
    _, later, _ = evaluated(artifacts, edition(artifacts, number=2), sometimes("a", 0.5), sometimes("b", 0.5), SAMPLED)
    assert not {request.seed for request in later.asked} & {request.seed for request in old.asked}


def test_the_mean_of_the_draws_is_one_observation_of_the_prompt() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts)
    numbers = {request.seed: place % 3 for place, request in enumerate(evaluated(artifacts, held, always, always, SAMPLED)[1].asked)}
    report, _, _ = evaluated(artifacts, held, lambda request: "yes" if numbers[request.seed] == 0 else "no", always, SAMPLED)
    overall = report.comparison("overall")
    assert overall is not None
    assert (overall.n, round(overall.champion, 9), overall.candidate) == (39, round(1 / 3, 9), 1.0), "two spellings are one observation"
    assert (report.asked, report.answered_by_both, report.samples, report.temperature) == (40, 40, 3, 0.8)
    rows = [json.loads(row) for row in artifacts.get(report.answers).splitlines()]
    assert [(row["draw"], row["temperature"], row["champion"]["reward"]) for row in rows[:4]] == [
        (0, 0.8, 1.0),
        (1, 0.8, 0.0),
        (2, 0.8, 0.0),
        (0, 0.8, 1.0),
    ]


@pytest.mark.parametrize("shift", range(1, 6))
def test_the_order_of_the_draws_changes_no_figure(shift: int) -> None:
    """Each model gives the same answers and failures to a prompt, in another order."""
    artifacts = MemoryArtifacts()
    held = edition(artifacts, golden=30)
    settings = GateSettings(samples=5, temperature=0.8)
    places: dict[tuple[str, int | None], int] = {}
    for request in evaluated(artifacts, held, always, always, settings)[1].asked:
        places[name_of(request), request.seed] = sum(name == name_of(request) for name, _ in places)

    def answering(side: str, moved: int) -> Answer:
        """Answer the draw at a place as another model that gets the draws in order would, `moved` places later."""
        model = sometimes(side, 0.6, 0.03)

        def answer(request: ChatRequest) -> str | None:
            place = (places[name_of(request), request.seed] * (1 if moved == 0 else 2) + moved) % 5
            return model(request.model_copy(update={"seed": place}))

        return answer

    past = [EarlierAnswers(version="v", answers=evaluated(artifacts, held, sometimes("z", 0.9), always, settings)[0].answers)]
    reports = [evaluated(artifacts, held, answering("a", by), answering("b", by), settings, past)[0] for by in (0, shift)]
    assert reports[0].failures, "the models fail sometimes"
    assert reports[0].earlier
    assert reports[0].answers != reports[1].answers
    assert reports[0].model_copy(update={"answers": reports[1].answers}) == reports[1]


def test_a_prompt_counts_once_and_only_if_both_models_answered_each_draw() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts)
    seeds: dict[str, list[int | None]] = {}
    for request in evaluated(artifacts, held, always, always, SAMPLED)[1].asked:
        seeds.setdefault(name_of(request), []).append(request.seed)

    def failing(names: Sequence[str], draws: Sequence[int]) -> Answer:
        return lambda request: None if name_of(request) in names and seeds[name_of(request)].index(request.seed) in draws else "yes"

    report, _, _ = evaluated(artifacts, held, failing(["q5"], [0]), failing(["q5", "q7", "q8"], [1, 2]), SAMPLED)
    assert report.failures == {"champion:HTTP 500": 1, "candidate:HTTP 500": 3}
    assert (report.asked, report.answered_by_both) == (40, 37)
    overall = report.comparison("overall")
    assert overall is not None
    assert overall.n == 38, "q5 is left out: the champion failed in a draw"
    assert round((1 - overall.candidate) * 38, 9) == round(2 * 2 / 3, 9), "a draw on which only the candidate failed has reward 0"
    assert [(one.name, one.champion_failed, one.candidate_failed) for one in report.counts] == [
        ("holdout", 1, 3),
        ("slice:s0", 0, 1),
        ("slice:s1", 1, 2),
    ]


class OneSided(FakeRewards):
    """A scorer is unavailable for the candidate's answer ("yes") to q7 that has the number `draw` among those to q7."""

    def __init__(self, draw: int) -> None:
        self.draw, self.seen = draw, 0

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        labels = []
        for sample in samples:
            away = False
            if sample["prompt"][0]["content"] == "q7" and sample["answer"] == "yes":
                away, self.seen = self.seen == self.draw, self.seen + 1
            labels.append(Label(0.5, Tier.VERIFIABLE, {}, 0, frozenset({"kind"} if away else {"kind", "strict"})))
        return labels


@pytest.mark.parametrize("draw", range(3))
def test_a_draw_that_other_scorers_decided_leaves_out_its_prompt(draw: int) -> None:
    artifacts = MemoryArtifacts()
    clients = [(fake_model("old"), Scripted(lambda _: "no")), (fake_model("new"), Scripted(always))]
    evaluator = PairedEvaluator(artifacts, OneSided(draw), SAMPLED)
    report = evaluator.evaluate(edition(artifacts), clients[0], clients[1], lambda *_: None, 0.95)
    assert report.failures == {UNLIKE: 1}
    assert (report.answered_by_both, report.comparisons[0].n) == (39, 38)


def test_stored_answers_are_compared_with_answers_that_were_decoded_alike() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, golden=40)
    greedy, sampled = GateSettings(), SAMPLED
    before = evaluated(artifacts, held, lambda request: "yes" if int(name_of(request)[1:]) < 20 else "no", always, greedy)[0]
    lately = evaluated(artifacts, held, sometimes("b", 0.5), always, sampled)[0]
    past = [EarlierAnswers(version="v-greedy", answers=before.answers), EarlierAnswers(version="v-sampled", answers=lately.answers)]
    report, old, new = evaluated(artifacts, held, always, lambda request: "yes" if request.temperature == 0 else "no", sampled, past)
    assert [request.temperature for request in new.asked[len(old.asked) :]] == [0.0] * 40, "only the golden set is asked again"
    assert report.earlier_common == 40
    found = {(one.version, one.comparison.name): one.comparison for one in report.earlier}
    assert found["v-greedy", "golden"].difference.estimate == 0.5
    assert found["v-sampled", "golden"].candidate == 0.0
    assert found["v-sampled", "golden"].n == 40
    assert new.asked[-1].seed is None
    one_decoding = evaluated(artifacts, held, always, always, sampled, past[1:])
    assert len(one_decoding[2].asked) == len(one_decoding[1].asked), "nothing is asked again"


def test_a_stored_prompt_with_a_missing_draw_is_not_compared() -> None:
    artifacts = MemoryArtifacts()
    held = edition(artifacts, golden=40)
    first = evaluated(artifacts, held, always, always, SAMPLED)[0]
    rows = artifacts.get(first.answers).splitlines()
    erased = [row for row in rows if not (json.loads(row)["prompt"][0]["content"] in ("g3", "g4") and json.loads(row)["draw"] == 2)]
    assert len(erased) == len(rows) - 2
    past = [EarlierAnswers(version="v", answers=artifacts.put(b"\n".join(erased)))]
    report = evaluated(artifacts, held, always, always, SAMPLED, past)[0]
    assert (report.earlier_common, report.earlier[0].comparison.n) == (38, 38)


def test_cut_answers_are_compared_on_the_prompts_that_both_answered() -> None:
    artifacts = MemoryArtifacts()
    clients = Scripted(sometimes("a", 0.5)), Scripted(sometimes("b", 0.5, 0.2))
    clients[0].finish = lambda _: "stop"
    clients[1].finish = lambda request: "length" if name_of(request).strip().lower() in {"q1", "q2"} else "stop"
    evaluator = PairedEvaluator(artifacts, FakeRewards(), GateSettings(looks=1))
    held = edition(artifacts)
    report = evaluator.evaluate(held, (fake_model("old"), clients[0]), (fake_model("new"), clients[1]), lambda *_: None, 0.95)
    answered = {name_of(request).strip().lower() for request in clients[1].asked if clients[1].answer(request) is not None}
    assert report.cut is not None
    assert report.cut.n == len(answered) < 40
    assert (report.cut.champion, report.cut.candidate) == (0.0, pytest.approx(len(answered & {"q1", "q2"}) / len(answered)))


def test_a_server_that_does_not_say_how_its_answers_ended_gives_no_comparison() -> None:
    artifacts = MemoryArtifacts()
    report, _, _ = evaluated(artifacts, edition(artifacts), sometimes("a", 0.5), sometimes("b", 0.5), GateSettings(looks=1))
    assert report.cut is None
