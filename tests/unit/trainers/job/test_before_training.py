"""Tests that the rows that a job leaves out are counted before it runs, exactly as the job then counts them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, LeftOut, Method
from ratchet.runtime.jobs.job_protocol import BACKEND, RunFile, TrainerBackend
from ratchet.trainers.job.before_training import before_training
from tests.unit.trainers.conftest import CONTENT, TEMPLATE, Workshop, store
from tests.unit.trainers.runs import asked
from tests.warm import Warm

pytestmark = pytest.mark.slow

NO_THREE = "{% if 'three' in messages[0].content %}{{ raise_exception('not three') }}{% endif %}"
UNPAIRED = "demonstrations of prompts without a pair"
REFUSED, LONG_PROMPT, LONG_ANSWER = (
    "that the chat template refuses",
    "with prompts longer than 48 tokens, by max_length or the model's context",
    "with answers that end after 48 tokens, by max_length or the model's context",
)
BEYOND = "longer than 63 tokens (nemo.max_prompt and the model's context)"
EQUAL = "whose two answers are equal after the chat template and the cut at max_length"
EXPECTED = {
    Method.DPO: [
        LeftOut(what="pairs", rows=12, reasons={REFUSED: 2, LONG_PROMPT: 1, LONG_ANSWER: 1, EQUAL: 1}),
        LeftOut(what=UNPAIRED, rows=5, reasons={REFUSED: 2, LONG_PROMPT: 1, LONG_ANSWER: 1}),
    ],
    Method.SFT: [LeftOut(what="answers", rows=12, reasons={REFUSED: 2, LONG_PROMPT: 1, LONG_ANSWER: 1})],
    Method.GRPO: [LeftOut(what="prompts", rows=12, reasons={REFUSED: 2, BEYOND: 1})],
}


@pytest.fixture
def workshop(tmp_path: Path, tiny_model: Path, warm: Warm) -> Workshop:
    """Return a workshop whose template refuses some prompts, with rows of which some are too long, or equal after trimming."""
    return refusing(tmp_path, tiny_model, warm, NO_THREE)


def refusing(folder: Path, tiny_model: Path, warm: Warm | None, template: str) -> Workshop:
    """Return a workshop with twelve rows, whose model has a template that begins with `template`."""
    model = Path(shutil.copytree(tiny_model, folder / "refusing"))
    (model / "chat_template.jinja").write_text(template + TEMPLATE)
    made = Workshop(folder, model, warm)
    prompts = [asked(word, "one") for word in CONTENT[:11]] + [asked(*["one"] * 80)]
    prompts[0] = asked("three", "three")
    chosen = ["yes"] * 11 + ["up"]
    chosen[1] = "yes " * 60
    rejected = ["no"] * 12
    chosen[2], rejected[2] = "yes", " yes "
    columns: dict[str, list[Any]] = {"prompt": prompts, "weight": [1.0] * 12}
    made.pairs = store(made.artifacts, folder / "p.parquet", {**columns, "chosen": chosen, "rejected": rejected})
    made.demonstrations = store(made.artifacts, folder / "d.parquet", {**columns, "answer": chosen})
    made.prompts = store(made.artifacts, folder / "g.parquet", {"prompt": prompts, "reference": ["yes"] * 12})
    return made


def counted(workshop: Workshop, spec: JobSpec, folder: Path, environment: dict[str, str] | None = None) -> list[LeftOut]:
    """Count the rows of a run folder with the inputs of a job."""
    from ratchet.contracts.jobs.training import TrainingPlan

    folder.mkdir()
    for name, key in spec.inputs.items():
        workshop.artifacts.fetch(key, folder / name)
    return list(before_training(folder, TrainingPlan.model_validate(json.loads(spec.plan_json)), environment or spec.environment).left_out)


@pytest.mark.parametrize("method", [Method.DPO, Method.SFT, Method.GRPO])
def test_the_job_leaves_out_exactly_the_rows_that_were_counted_before(workshop: Workshop, tmp_path: Path, method: Method) -> None:
    spec = workshop.spec(workshop.plan(method, steps=2))
    found = counted(workshop, spec, tmp_path / "run")
    assert found == EXPECTED[method]
    workshop.executor.submit(spec, 1)
    assert workshop.wait(spec).outcome == Outcome.DONE, workshop.log(spec)
    warnings = [event.data["reason"] for event in workshop.executor.events(spec.name) if event.kind == "warning"]
    assert warnings == [one.sentence for one in found]


def test_a_job_whose_rows_are_all_refused_fails_permanently_with_the_counted_reason(tmp_path: Path, tiny_model: Path, warm: Warm) -> None:
    workshop = refusing(tmp_path, tiny_model, warm, "{% if 'zq' not in messages[0].content %}{{ raise_exception('never') }}{% endif %}")
    spec = workshop.spec(workshop.plan(Method.SFT, steps=2))
    (found,) = counted(workshop, spec, tmp_path / "run")
    assert (found.kept, found.sentence) == (0, "all 12 answers are excluded: 12 that the chat template refuses")
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.PERMANENT
    assert found.sentence in status.reason


def test_prompts_for_nemo_rl_are_counted_with_its_own_limit(workshop: Workshop, tmp_path: Path) -> None:
    spec = workshop.spec(workshop.plan(Method.GRPO, steps=2, nemo={"max_prompt": 40}))
    found = counted(workshop, spec, tmp_path / "run", BACKEND.to_env(TrainerBackend.NEMO_RL))
    assert found == [LeftOut(what="prompts", rows=12, reasons={REFUSED: 2, "longer than nemo.max_prompt = 40 tokens": 1})]
    assert len(pq.read_table(tmp_path / "run" / RunFile.PROMPTS)) == 12
    few = workshop.spec(workshop.plan(Method.GRPO, steps=2, prompts_per_step=10, nemo={"max_prompt": 40}))
    with pytest.raises(ConfigError, match="9 training prompts are fewer than the 10 of one step"):
        counted(workshop, few, tmp_path / "few", BACKEND.to_env(TrainerBackend.NEMO_RL))
