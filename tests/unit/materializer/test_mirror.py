"""Tests of the choice of mirrored prompts: only what may be used now, independent of the answers, and balanced over people."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.fakes import FakeClock
from ratchet.contracts.mirror import MirrorAsk, MirrorPrompts
from ratchet.materializer.datasets import LakeDatasets
from tests.unit.materializer.conftest import make_datasets, make_loop, pseudonym_of, signed
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

SINCE = datetime.fromtimestamp(T0 / 1e9, UTC)
WINDOW = SINCE, SINCE + timedelta(seconds=1000)
SECOND = 10**9
WORDS = ("apple", "river", "stone", "cloud", "violin", "harbour", "candle", "meadow", "copper", "window", "engine", "garden")


def call(n: int, user: str | None = "ann", version: str = "new", prompt: str | None = None, second: int = 0, **more: Any) -> dict[str, Any]:
    text = prompt or f"{WORDS[n % 12]} {n * 7919} {WORDS[(n // 12 + 5) % 12]}?"
    values = {"ratchet__model_version": version, "user__id": user, "metadata__reference": "2", **more}
    return span(n, text, at=T0 + second * SECOND + n, **values)


def store(folder: Path, *items: Any, feedback: tuple[Any, ...] = (), loop: Any = None) -> LakeDatasets:
    datasets = make_datasets(folder, loop)
    datasets.ingest(batch(spans(*(signed(folder, item) for item in items)), *([logs(*feedback)] if feedback else [])))
    return datasets


def chosen(datasets: LakeDatasets, rollout: str = "rollout/math/0001", **asks: Any) -> MirrorPrompts:
    return datasets.mirror_prompts(rollout, ("old", "new"), WINDOW, MirrorAsk(**{"limit": 100, **asks}))


def texts(found: MirrorPrompts) -> set[str]:
    return {one.messages[-1]["content"] for one in found.prompts}


def test_only_signed_requests_of_both_versions_within_the_window_are_asked(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    good = [call(1, prompt="one apple?"), call(2, prompt="two rivers?", version="old")]
    bad = [
        call(3, prompt="other version?", version="v-other"),
        call(4, prompt="too late?", second=2000),
        call(5, prompt="too early?", second=-10),
        call(6, prompt="a probe?", ratchet__origin="probe"),
    ]
    unsigned = call(7, prompt="forged?")
    datasets.ingest(batch(spans(*(signed(tmp_path, one) for one in good + bad), unsigned)))
    assert texts(chosen(datasets)) == {"one apple?", "two rivers?"}


def test_without_versions_the_traces_that_applications_send_are_asked(tmp_path: Path) -> None:
    """A Gateway names no version and signs nothing."""
    datasets = make_datasets(tmp_path)
    refused = call(2, prompt="no consent?", ratchet__model_version=None, metadata__consent=False)
    datasets.ingest(batch(spans(call(1, prompt="an application's?", ratchet__model_version=None), refused)))
    assert texts(chosen(datasets)) == set()
    assert texts(datasets.mirror_prompts("rollout/math/0001", (), WINDOW, MirrorAsk(limit=100))) == {"an application's?"}


def test_the_choice_does_not_depend_on_what_a_version_answered(tmp_path: Path) -> None:
    """Otherwise the prompts on which a version fails would be left out."""
    items = [
        call(1, "u1", prompt="a failed request?") | {"status": {"code": 2}},
        call(2, "u2", prompt="a refused request?", gen_ai__output__messages=None, ratchet__refused=True),
        call(3, "u3", prompt="a cut answer?", gen_ai__response__finish_reasons="length"),
    ]
    assert len(chosen(store(tmp_path, *items)).prompts) == 3


def test_what_may_not_be_used_for_evaluation_is_not_asked(tmp_path: Path) -> None:
    loop = make_loop(governance={"regions": ["eu"]})
    items = [
        call(1, prompt="allowed?", metadata__region="eu"),
        call(2, prompt="elsewhere?", metadata__region="us"),
        call(3, prompt="no consent?", metadata__region="eu", metadata__consent=False),
    ]
    assert texts(chosen(store(tmp_path, *items, loop=loop))) == {"allowed?"}


def test_a_withdrawn_consent_counts_at_once_also_for_a_begun_batch(tmp_path: Path) -> None:
    datasets = store(tmp_path, call(1, "ann"), call(2, "bob"))
    keys = tuple(one.key for one in chosen(datasets).prompts)
    said = evaluation("user_consent", 0.0, at=T0 + 60 * SECOND, user__id="ann") | {"eventName": "gen_ai.evaluation.result"}
    datasets.ingest(replace(batch(logs(said)), sender=Sender(name="desk", roles=(Role.FEEDBACK,))))
    assert len(keys) == 2
    assert len(chosen(datasets, only=keys).prompts) == 1
    assert len(chosen(datasets).prompts) == 1


def test_prompts_without_a_reference_are_asked_only_if_a_scorer_needs_none(tmp_path: Path) -> None:
    items = [call(1, metadata__reference=None), call(2, metadata__reference=None), call(3)]
    reviewed = log(2, evaluation("reviewer_reference", text="7"))
    corrected = log(1, evaluation("user_correction", text="8", user__id="ann"))
    found = chosen(store(tmp_path, *items, feedback=(reviewed, corrected)))
    assert sorted(one.reference or "" for one in found.prompts) == ["2", "7"], "a correction shows that a version failed"


def test_a_reference_of_an_equal_request_counts(tmp_path: Path) -> None:
    items = [call(1, prompt="same?", metadata__reference=None), call(2, prompt="same?")]
    assert [one.reference for one in chosen(store(tmp_path, *items)).prompts] == ["2"]


@pytest.mark.slow
def test_people_have_turns_and_a_batch_has_few_prompts_of_one(tmp_path: Path) -> None:
    items = [call(n, "busy") for n in range(1, 40)] + [call(n, f"u{n}") for n in range(40, 44)]
    datasets = store(tmp_path, *items)
    first = chosen(datasets, limit=8)
    assert sorted(Counter(one.person for one in first.prompts).values()) == [1, 1, 1, 1, 2], "the batch is not filled by one person"
    asked, turns = frozenset(one.key for one in first.prompts), Counter(one.person for one in first.prompts)
    others = dict.fromkeys((f"p{n}" for n in range(9)), 9)
    again = chosen(datasets, limit=8, asked=asked, turns={**turns, **others})
    assert not asked & {one.key for one in again.prompts}
    assert len({one.person for one in again.prompts}) == 1


@pytest.mark.slow
def test_a_busy_person_waits_until_others_have_sent_more(tmp_path: Path) -> None:
    datasets = store(tmp_path, *(call(n, "busy") for n in range(1, 60)))
    (busy,) = {one.person for one in chosen(datasets).prompts}
    others = {f"p{n}": 10 for n in range(9)}
    for turns, prompts in ((15, 0), (2, 2)):
        assert len(chosen(datasets, turns={**others, busy: turns}).prompts) == prompts


def test_requests_without_user_and_session_are_one_person(tmp_path: Path) -> None:
    items = [call(n, None) for n in range(1, 30)]
    found = chosen(store(tmp_path, *items))
    assert (len(found.prompts), len({one.person for one in found.prompts})) == (2, 1)


def test_near_duplicates_of_a_chosen_prompt_are_left_out(tmp_path: Path) -> None:
    template = "Please compute the sum of the two following numbers and answer with the number alone, without any words: {} plus 4"
    datasets = store(tmp_path, *(call(n, f"u{n}", prompt=template.format(n)) for n in range(1, 9)))
    found = chosen(datasets)
    assert len(found.prompts) == 1
    assert chosen(datasets, asked=frozenset({found.prompts[0].key})).prompts == ()


def test_one_turn_of_a_conversation_is_asked(tmp_path: Path) -> None:
    said = [{"role": "user", "parts": [{"type": "text", "content": "Is the red house near the sea?"}]}]
    later = [*said, {"role": "assistant", "parts": [{"type": "text", "content": "no"}]}, said[0]]
    turns = [call(n, f"u{n}", gen_ai__input__messages=json.dumps(asked)) for n, asked in enumerate((said, later), 1)]
    assert len(chosen(store(tmp_path, *turns)).prompts) == 1


def test_hashes_name_nobody_and_end_with_the_rollout(tmp_path: Path) -> None:
    datasets = store(tmp_path, call(1), call(2, "bob"))
    found = chosen(datasets)
    assert chosen(datasets) == found, "a repeated call returns the same"
    names = {one.person for one in found.prompts} | {one.key for one in found.prompts}
    pseudonyms = {pseudonym_of(datasets, "u", name) for name in ("ann", "bob")}
    assert not any(name in other or other in name for name in names for other in pseudonyms | {"ann", "bob"})
    other = chosen(datasets, "rollout/math/0002")
    assert other.secret != found.secret
    assert not names & ({one.person for one in other.prompts} | {one.key for one in other.prompts})
    datasets.forget_mirror()
    assert not (tmp_path / "lake" / "mirror.json").exists()
    assert chosen(datasets, "rollout/math/0002").secret != other.secret


@pytest.mark.parametrize("damage", [b"", b"{", b"[]"])
def test_a_damaged_key_is_replaced_so_that_earlier_pairs_do_not_count(tmp_path: Path, damage: bytes) -> None:
    datasets = store(tmp_path, call(1))
    found = chosen(datasets)
    (tmp_path / "lake" / "mirror.json").write_bytes(damage)
    assert chosen(datasets).secret != found.secret


def test_new_users_wait_as_their_ratings_do(tmp_path: Path) -> None:
    datasets = store(tmp_path, *(call(n, "ann") for n in range(1, 5)))
    start, known = datasets.clock.now(), {one.person for one in chosen(datasets).prompts}
    datasets.clock = FakeClock(start + timedelta(days=30))
    datasets.ingest(batch(spans(*(signed(tmp_path, call(n, f"new{n}")) for n in range(5, 30)))))
    assert {one.person for one in chosen(datasets).prompts} == known, "users who came after the line's first days wait"
    window = SINCE, start + timedelta(days=38)
    later = datasets.mirror_prompts("rollout/math/0001", ("old", "new"), window, MirrorAsk(limit=100))
    assert len({one.person for one in later.prompts}) > 10


def test_a_right_answer_with_a_masked_value_that_the_prompt_lacks_scores_nothing(tmp_path: Path) -> None:
    datasets = store(
        tmp_path,
        call(1, prompt="who knows?", metadata__reference="ask kim@example-mail.com"),
        call(2, prompt="write to kim@example-mail.com", metadata__reference="sent to kim@example-mail.com"),
        call(3, prompt="which customer?", metadata__reference="it is K-12345"),
        loop=make_loop(privacy={"patterns": {"customer": r"K-\d{5}"}}),
    )
    assert {one.reference for one in chosen(datasets).prompts} == {"sent to [EMAIL_1]"}


def test_a_right_answer_that_came_later_scores_the_prompt(tmp_path: Path) -> None:
    datasets = store(tmp_path, call(1, prompt="one apple?", metadata__reference=None), call(2, prompt="two rivers?"))
    for n, prompt in ((1, "one apple?"), (2, "two rivers?")):
        assert datasets.ingest(batch(spans(signed(tmp_path, call(n, prompt=prompt, metadata__reference="3"))))).late_references == 1
    assert {one.messages[-1]["content"]: one.reference for one in chosen(datasets).prompts} == {"one apple?": "3", "two rivers?": "3"}
