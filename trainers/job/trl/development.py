"""Scores of the model on prompts that it is not trained on, for `steps = "auto"`: development prompts, or those of a fold.

With a verifiable scorer, the model answers the prompts with the gate's temperature, and its answers are scored. Otherwise, and in a run of
several processes, the score is the log-probability per token of the known right answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from trl.models.utils import disable_gradient_checkpointing

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.data.datasets import CROSS_VALIDATED_LEAST
from ratchet.contracts.data.records import Tier
from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import digest
from ratchet.runtime.chat_template import read_answer, token_ids
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.runtime.tokenizer import stop_tokens
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.model_fit import row_limit
from ratchet.trainers.job.prompt_length import own_call_format, rendered_prompt
from ratchet.trainers.job.trl.conversations import Example, answer_text, assistant_message, encode, messages, shows_tools, tools_of
from ratchet.trainers.length import LEAST, accepts_many
from ratchet.trainers.recipes.recipe import Recipe

MOST_ROWS = 32
"""Maximum number of prompts that are answered at a time."""
ROWS_PER_MICRO_BATCH = 4
"""Prompts that are answered at a time per row of a micro-batch: an answer needs no gradients. The memory remedy halves both."""


class Development:
    """The development prompts of a job, or those of its cross-validation, and how they are scored."""

    def __init__(self, job: Job, tokenizer: Any, recipe: Recipe, file: RunFile = RunFile.DEVELOPMENT) -> None:
        """Read the prompts of `job` from `file`. Prompts of `max_length` tokens or more are left out. Without it, there are no prompts."""
        max_length = row_limit(job.run / RunFile.MODEL, int(getattr(recipe, "max_length", 1 << 30)))
        self._at_once = min(MOST_ROWS, ROWS_PER_MICRO_BATCH * recipe.micro_batch)
        self.by = "answers"
        """answers | likelihood: what is scored."""
        self._scorers = _verifiable(job)
        self._tokenizer, self._stops = tokenizer, stop_tokens(job.run / RunFile.MODEL, tokenizer)
        self._tokens = job.plan.answer_tokens or 256
        self._temperature, self._seed = job.plan.answer_temperature, job.plan.seed
        self._max_length = max_length
        found = _rows(job, file)
        tools = shows_tools(tokenizer)
        usable = [row for row in found if (tools or not _example(row).needs_tools) and self._is_rendered(row)]
        asked = [row for row in usable if row["reference"] is not None or (self._scorers and self._scorers.without_reference())]
        least = LEAST if file is RunFile.DEVELOPMENT else CROSS_VALIDATED_LEAST
        if self._scorers is None or len(asked) < least or not parallel.alone():
            self.by, asked = "likelihood", [row for row in usable if row["answer"] is not None]
        lengths = [len(self._ids(row)) for row in asked]
        self.rows = [row for row, length in zip(asked, lengths, strict=True) if length < max_length]
        self.enough = len(self.rows) >= least
        """Whether the prompts can decide how long to train."""

    def only(self, prompts: Sequence[str]) -> Development:
        """Return the prompts with these ids, in their order, which are scored in the same way. All of them must be usable."""
        some, by_id = copy(self), {row["prompt_id"]: row for row in self.rows}
        some.rows = [by_id[prompt] for prompt in prompts]
        return some

    @property
    def slices(self) -> list[str | None]:
        """Slice of each prompt."""
        return [row["slice"] for row in self.rows]

    def scores(self, trainer: Any) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """Return the score of each prompt and its agreement (`Measurement`) under the trainer's present model.

        All processes of a run must call it together. They get the scores of rank 0, so that they all decide alike.
        """
        with at_rest(trainer):
            scores, agreement = zip(*self._forced(trainer), strict=True)
            if self.by == "answers":
                answers = self._answers(trainer)
                scores = tuple(label.reward for label in self._scorers.verify(answers))
                if accepts_many(scores, [answer["answer"] for answer in answers], [row["answer"] for row in self.rows]):
                    agreement = (None,) * len(scores)
            found = [(scores, agreement)]
        if not parallel.alone():
            from accelerate.utils import broadcast_object_list

            broadcast_object_list(found)
        return found[0]

    def _answers(self, trainer: Any) -> list[dict[str, Any]]:
        """Return for each prompt its answer by the trainer's present model, as the scorers take it."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        texts: dict[int, str] = {}
        by_length = sorted(range(len(self.rows)), key=lambda i: (len(self._ids(self.rows[i])), i))
        for start in range(0, len(by_length), self._at_once):
            some = by_length[start : start + self._at_once]
            texts |= dict(zip(some, self._generated(model, [self._ids(self.rows[i]) for i in some]), strict=True))
        calls = own_call_format(self._tokenizer)
        return [
            {
                "prompt": row["prompt"],
                "answer": stored_answer(read_answer(texts[i], calls if row["tools"] else None)),
                "reference": row["reference"],
            }
            for i, row in enumerate(self.rows)
        ]

    def _generated(self, model: Any, prompts: Sequence[list[int]]) -> list[str]:
        pad = self._tokenizer.pad_token_id if self._tokenizer.pad_token_id is not None else self._tokenizer.eos_token_id or 0
        width = max(len(ids) for ids in prompts)
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
        ids = torch.tensor([[pad] * (width - len(one)) + one for one in prompts], device=model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=model.device)
        sampled: dict[str, Any] = {"do_sample": False}
        if self._temperature:  # invalid values are replaced, because the health rules are to see a diverged model, as with greedy answers
            sampled = {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0, "remove_invalid_values": True}
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):  # the training draws as it would without
            torch.manual_seed(int(digest([self._seed, prompts])[:12], 16))  # the same draws at each measurement, also after a resume
            written = model.generate(
                input_ids=ids,
                attention_mask=mask,
                **sampled,
                max_new_tokens=max(1, min(self._tokens, context - width)),
                pad_token_id=pad,
                use_cache=True,
            )
        answers = ([token for token in row[width:] if token not in self._stops] for row in written.tolist())  # as a server returns them
        return [self._tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]

    def _forced(self, trainer: Any) -> list[tuple[float | None, float | None]]:
        """For the known right answer to each prompt: mean log-probability per token in nats, and share of tokens that are ranked first.

        Both are None for a prompt without one, and where the model's numbers are not finite.
        """
        return [
            (None, None) if row["answer"] is None else forced(trainer, self._tokenizer, _example(row), self._max_length)
            for row in self.rows
        ]

    def _is_rendered(self, row: dict[str, Any]) -> bool:
        """Whether the chat template accepts the prompt and its known answer. A prompt that only measures must not end the run."""
        try:
            self._ids(row)
            encode(self._tokenizer, _example(row))
        except Permanent:
            return False
        return True

    def _ids(self, row: dict[str, Any]) -> list[int]:
        return token_ids(self._tokenizer, rendered_prompt(self._tokenizer, row["prompt"], row["tools"]))


def forced(trainer: Any, tokenizer: Any, example: Example, max_length: int) -> tuple[float | None, float | None]:
    """For the answer of an example under the trainer's present model: mean log-probability per token in nats, and share of tokens that are
    ranked first. Both are None if no token of the answer is within `max_length`, and where the model's numbers are not finite.

    Raises Permanent if the template cannot render the example.
    """
    pair = encode(tokenizer, example).cut(max_length)
    if len(pair.prompt) >= max_length:
        return None, None
    known = pair.chosen if pair.prompt else pair.chosen[1:]
    if not known:
        return None, None
    ids = torch.tensor([[*pair.prompt, *pair.chosen]], device=trainer.accelerator.device)
    logits = trainer.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -len(known) - 1 : -1].float()
    right = ids[0, -len(known) :]
    likelihood = float(logits.log_softmax(-1).gather(-1, right[:, None]).mean())
    agreement = float((logits.argmax(-1) == right).float().mean())
    return (likelihood, agreement) if math.isfinite(likelihood) else (None, None)


@contextmanager
def at_rest(trainer: Any) -> Iterator[None]:
    """Put the model in evaluation mode without gradients, and restore its mode afterwards."""
    model = trainer.model
    was_training = model.training
    model.eval()
    try:
        with (
            torch.no_grad(),
            disable_gradient_checkpointing(model, trainer.args.gradient_checkpointing_kwargs),
            trainer.accelerator.autocast(),
        ):
            yield
    finally:
        model.train(was_training)


def _verifiable(job: Job) -> Any:
    """The plan's scorers, or None if none of them verifies new answers."""
    from ratchet.rewards.scorer_set import planned_scorer_set

    try:
        scorers = planned_scorer_set(job.plan)
    except Permanent:
        return None
    return scorers if any(version.tier is Tier.VERIFIABLE for version in scorers.versions) else None


def _rows(job: Job, file: RunFile) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    path = job.run / file
    if not path.exists():
        return []
    known = [name for name in ("tools", "prompt_id", "cluster") if name in pq.read_schema(path).names]
    rows = pq.read_table(path, columns=["prompt", "reference", "slice", "answer", *known]).to_pylist()
    return [
        {**row, "prompt": messages(row["prompt"], f"development prompt {n}"), "tools": tools_of(row, f"development prompt {n}")}
        for n, row in enumerate(rows)
    ]


def _example(row: dict[str, Any]) -> Example:
    from ratchet.runtime.chat_template import template_messages

    answer = assistant_message(answer_text(row["answer"] or row["reference"] or "", "development prompt", "answer"))
    return Example(template_messages(row["prompt"]), answer, None, row["tools"], 1.0)
