"""A tiny model with data and plans, for real training within seconds on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, JobEvent, JobSpec, JobStatus, Method, ResumePoint, TrainingPlan
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.model import model_ref
from ratchet.local.executor import LocalExecutor
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.job_protocol import trainer_log
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from ratchet.trainers.code_digest import code_digest
from tests.unit.trainers.judge import SOURCE, Judge, install, judging
from tests.waiting import has_result, job_until
from tests.warm import TRAINER, Warm, WarmExecutor

ROOT = Path(__file__).resolve().parents[3]
TRAINERS: dict[Method, Any] = {Method.DPO: DPO(), Method.GRPO: GRPO(), Method.SFT: SFT()}
CONTROL = ("<pad>", "<end>", "<unk>", "<user>", "<assistant>")
CONTENT = ("the", "a", "one", "two", "three", "four", "five", "six", "yes", "no", "up", "down", "left", "right")
WORDS = (*CONTROL, *CONTENT)
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}<user> {{ m.content }} "
    "{% else %}<assistant> {{ m.content }} <end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


def write_model(folder: Path, width: int = 32, tied: bool = False, words: Sequence[str] = WORDS) -> Path:
    """Write a Llama model of two layers and a word-level tokenizer, together some tens of kilobytes.

    `tied`: the output head is the embedding. `words` is its vocabulary.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<pad>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(7)
    shape = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    ends = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=64, tie_word_embeddings=tied, **ends, **shape))
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=1, pad_token_id=0, max_new_tokens=7)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def store(artifacts: FolderArtifacts, path: Path, columns: dict[str, list[Any]]) -> Digest:
    """Write the columns to a Parquet file and store it as an artifact."""
    pq.write_table(pa.table(columns), path)
    return artifacts.put_file(path)


class Workshop:
    """Artifacts, an executor, and plans for the tiny model."""

    def __init__(self, folder: Path, model: Path, warm: Warm | None = None) -> None:
        self.folder = folder
        self.artifacts = FolderArtifacts(folder / "artifacts")
        places = folder / "jobs", folder / "artifacts"
        self.executor = WarmExecutor(*places, warm) if warm else LocalExecutor(*places)
        files = self.artifacts.put_folder(model)
        self.start = model_ref(model, files)
        words = CONTENT
        prompts = [json.dumps([{"role": "user", "content": f"{a} {b}"}]) for a in words[:6] for b in words[6:10]]
        n = len(prompts)
        answers = [words[i % len(words)] for i in range(n)]
        pairs = {"prompt": prompts, "chosen": answers, "rejected": [words[(i + 5) % len(words)] for i in range(n)]}
        self.pairs = store(self.artifacts, folder / "pairs.parquet", {**pairs, "weight": [0.5 + 0.5 * (i % 2) for i in range(n)]})
        unpaired = [json.dumps([{"role": "user", "content": f"{word} {word}"}]) for word in words[:6]]
        shown = [*prompts, *unpaired]
        told = {"prompt": shown, "answer": [*answers, *words[-6:]], "weight": [0.5 + 0.5 * (i % 2) for i in range(len(shown))]}
        self.demonstrations = store(self.artifacts, folder / "demonstrations.parquet", told)
        probed = {"probe_rewards": [("mixed", "equal", None)[i % 3] for i in range(n)]}
        self.prompts = store(self.artifacts, folder / "prompts.parquet", {"prompt": prompts, "reference": ["yes"] * n, **probed})

    def plan(
        self, method: Method, rewards: Sequence[RewardSettings] = (RewardSettings(name="exact_match"),), **changes: Any
    ) -> TrainingPlan:
        """Return a plan for a small run, with `changes` to its recipe."""
        trainer = TRAINERS[method]
        small = {"micro_batch": 4, "warmup_steps": 0, "learning_rate": 1e-3, "gradient_checkpointing": False, "save_every": 1}
        pairs = {"batch": 8, "max_length": 48}
        groups = {"prompts_per_step": 4, "generations": 8, "max_completion": 1, "micro_batch": 16, "prompt_order": "signal"}
        own = groups if method == Method.GRPO else pairs
        return TrainingPlan(
            line="tiny",
            cycle="cycle/tiny/0001",
            start=self.start,
            dataset="d" * 64,
            pairs=self.pairs,
            prompts=self.prompts,
            demonstrations=self.demonstrations,
            method=method,
            recipe=trainer.recipe({**small, **own, **changes}),
            seed=3,
            scorers=build_scorer_set(rewards).versions,
            scorer_options={reward.name: reward.options for reward in rewards if reward.options},
            code=code_digest(),
        )

    def spec(self, plan: TrainingPlan, attempt: int = 1, timeout: float = 300) -> JobSpec:
        """Return the job of an attempt at the plan."""
        return TRAINERS[plan.method].job(plan, Attempt(number=attempt, timeout=timeout))

    def wait(self, spec: JobSpec, until: Callable[[JobStatus], bool] = has_result) -> JobStatus:
        """Reconcile and observe the job until the condition holds, by default until its result is stored. Return that status."""
        return job_until(self.executor, spec.name, until, 240, lambda: self.log(spec))

    def preempt(self, spec: JobSpec, step: int) -> JobStatus:
        """Cancel the job once it has reached the step, and return its status after it has ended as preempted."""
        self.wait(spec, lambda status: status.step >= step or has_result(status))
        self.executor.cancel(spec.name)
        status = self.wait(spec)
        assert status.outcome == Outcome.PREEMPTED, (status, self.log(spec))
        return status

    def run_folder(self, spec: JobSpec) -> Path:
        """Return the run folder of the job."""
        return self.executor.root / spec.plan[:16] / f"a{spec.attempt}"

    def log(self, spec: JobSpec) -> str:
        """Return the ends of all logs of the job."""
        logs = sorted(self.run_folder(spec).glob("i*/*.log"))
        return "\n".join(f"{path}: {path.read_text()[-3000:]}" for path in logs)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the tiny model."""
    return write_model(tmp_path_factory.mktemp("tiny") / "model")


LISTED = """
import os, sys
leave = os._exit
os._exit = lambda code: (print("LOADED", *filter(sys.modules.get, sys.modules), flush=True), leave(code))
"""
"""A `sitecustomize` that prints the names of the loaded modules when `trainers/job/fast_exit.py` ends a process."""
STEPS = 40
"""Steps of the undisturbed runs: enough for an interruption during the run and for an effect of the training."""


@dataclass(frozen=True)
class Trained:
    """An undisturbed run that saves at every step, for comparison. Its processes start their own interpreters.

    Tests that change its files must copy them first.
    """

    workshop: Workshop
    plan: TrainingPlan
    spec: JobSpec

    @property
    def events(self) -> list[JobEvent]:
        """Return all events of the run."""
        return self.workshop.executor.events(self.spec.name)

    @property
    def points(self) -> list[ResumePoint]:
        """Return the checkpoints that still exist, oldest first."""
        told = [event for event in self.events if event.kind == "checkpoint"]
        found = [ResumePoint(attempt=self.spec.attempt, incarnation=event.incarnation, step=event.step, **event.data) for event in told]
        return [point for point in found if (self.workshop.run_folder(self.spec).parent / point.path).exists()]

    @property
    def loaded(self) -> set[str]:
        """Return the names of the modules that the trainer process had imported at its end."""
        log = (self.workshop.run_folder(self.spec) / "i1" / trainer_log(0)).read_text()
        return set(log.rpartition("LOADED ")[2].split())

    def copied(self, workshop: Workshop, attempt: int) -> tuple[JobSpec, ResumePoint, Path]:
        """Return another attempt at the plan for `workshop`, a checkpoint from which it can resume, and the folder of its copy."""
        spec, point = workshop.spec(self.plan, attempt), self.points[0]
        folder = workshop.run_folder(spec).parent / point.path
        return spec, point, Path(shutil.copytree(self.workshop.run_folder(self.spec).parent / point.path, folder))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Callable[[Method], Trained]:
    """Return a function that finds the undisturbed run of a method; the first call trains it."""
    known: dict[Method, Trained] = {}

    def find(method: Method) -> Trained:
        if method not in known:
            workshop = Workshop(tmp_path_factory.mktemp(method.value), tiny_model)
            plan = workshop.plan(method, steps=STEPS)
            spec = workshop.spec(plan)
            (workshop.folder / "sitecustomize.py").write_text(LISTED)
            path = os.pathsep.join([str(workshop.folder), str(ROOT)])
            spec = spec.model_copy(update={"environment": {**spec.environment, "PYTHONPATH": path}})
            workshop.executor.submit(spec, 1)
            status = workshop.wait(spec)
            assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
            known[method] = Trained(workshop, plan, spec)
        return known[method]

    return find


@pytest.fixture
def workshop(tmp_path: Path, tiny_model: Path) -> Workshop:
    """Return artifacts, an executor and plans in the test's folder. Each process of a job starts its own interpreter."""
    return Workshop(tmp_path, tiny_model)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Yield the process that has loaded torch and TRL."""
    process = Warm(tmp_path_factory.mktemp("w"), TRAINER)
    yield process
    process.stop()


@pytest.fixture
def warm_workshop(tmp_path: Path, tiny_model: Path, warm: Warm) -> Workshop:
    """Return artifacts, an executor and plans in the test's folder. The jobs are forked from a process that has loaded torch and TRL."""
    return Workshop(tmp_path, tiny_model, warm)


@pytest.fixture
def judge() -> Iterator[Judge]:
    """Yield a running judge for the test."""
    with judging() as found:
        yield found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder of installed distributions that contains the scorer that asks the judge.

    This process and the processes that it starts can import from the folder.
    """
    folder = tmp_path / "site"
    install(folder, "1.0")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in (SOURCE.stem, "example_judge")]:
        del sys.modules[name]


@pytest.fixture
def judged(judge: Judge, site: Path) -> tuple[RewardSettings, ...]:
    """Return the rewards of a loop file with only the scorer that asks the judge."""
    return (RewardSettings(name=SOURCE.stem, options={"port": judge.server_port}),)
