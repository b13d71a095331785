"""Batched generation in which every row has its own temperature, seed and listener. This is the only module of the package that uses torch.

Sampling uses the Gumbel-max trick: the arg max of logits / T plus Gumbel noise is an exact sample at temperature T. A row without noise
is decoded greedily, so one batch can contain both kinds. A row with a seed gives the same answer in every batch, except for
floating-point differences caused by padding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, StoppingCriteria

from ratchet.runtime.chat_template import CallFormat, call_format, prompt_text, token_ids
from ratchet.runtime.hidden_package import hidden
from ratchet.runtime.tokenizer import stop_tokens, with_ends


@dataclass(frozen=True)
class Piece:
    """A part of an answer: its text, and the tokens that it consists of with their log-probabilities."""

    text: str
    tokens: list[int]
    logprobs: list[float] | None
    """None if not requested."""
    finish_reason: str | None = None
    """In the last piece: stop | length."""


Listener = Callable[[Piece], None]


@dataclass(frozen=True)
class GenerationRow:
    """Request for one answer to generate."""

    prompt: list[int]
    """Token ids."""
    temperature: float
    """0 means greedy decoding."""
    seed: int
    max_tokens: int
    """Maximum number of new tokens."""
    logprobs: bool = False
    """Whether to return the log-probability of each token."""
    adapter: str = ""
    """Name of the loaded adapter that answers. Empty: the model itself."""
    listener: Listener | None = None
    """Gets the pieces of the answer while it is generated. It is called in the thread that generates."""


@dataclass(frozen=True)
class Generated:
    """The generated answer of one row."""

    text: str
    tokens: list[int]
    finish_reason: str
    """stop | length"""
    logprobs: list[float] | None
    """Natural logarithms of the token probabilities under the model at temperature 1; None if not requested."""


class _RowSampler(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, rows: Sequence[GenerationRow]) -> None:
        self._rows = rows
        self._noise = [torch.Generator().manual_seed(row.seed) if row.temperature > 0 else None for row in rows]
        self._keep = any(row.logprobs for row in rows)
        self.logprobs: list[Any] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002
        scores = scores.float()
        if self._keep:
            self.logprobs.append(torch.log_softmax(scores, -1))
        noisy = scores.clone()
        for i, (row, noise) in enumerate(zip(self._rows, self._noise, strict=True)):
            if noise is not None:
                uniform = torch.rand(noisy.shape[1], generator=noise).clamp_(1e-20, 1 - 1e-7).to(noisy.device)
                noisy[i] = noisy[i] / row.temperature - torch.log(-torch.log(uniform))
        return noisy


class _RowEnd(StoppingCriteria):  # type: ignore[misc]
    """Ends a row at its own limit of tokens, or when its answer is no longer wanted. Passes each new token to the row's stream."""

    def __init__(
        self, rows: Sequence[GenerationRow], stopped: Sequence[Callable[[], bool]], prompt: int, streams: Sequence[_Stream]
    ) -> None:
        self._limits = torch.tensor([prompt + row.max_tokens for row in rows])
        self._stopped = stopped
        self._streams = streams

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        for stream in self._streams:
            stream.add(int(input_ids[stream.row, -1]))
        over = input_ids.shape[1] >= self._limits
        return (over | torch.tensor([stopped() for stopped in self._stopped])).to(input_ids.device)


class _Stream:
    """The answer of one row of a batch, piece by piece. A piece never ends inside a character of several bytes."""

    def __init__(
        self, row: int, asked: GenerationRow, listener: Listener, decode: Callable[[list[int]], str], stops: set[int], sampler: _RowSampler
    ) -> None:
        self.row = row
        self._asked = asked
        self._listener = listener
        self._decode = decode
        self._stops = stops
        self._sampler = sampler
        self._ids: list[int] = []
        self._told = 0
        """Number of tokens whose text was passed on."""
        self._context = 0
        """Token from which the next text is decoded. Texts of tokens depend on those before them, for example for spaces."""
        self._length = 0
        """Number of characters that were passed on."""
        self._ended = False

    def add(self, token: int) -> None:
        """Add the next token. Tokens after the end of the answer are padding and are ignored."""
        if self._ended:
            return
        self._ids.append(token)
        finish = "stop" if token in self._stops else "length" if len(self._ids) >= self._asked.max_tokens else None
        if finish is not None:
            self._ended = True
            self._tell(self._decode(self._ids)[self._length :], finish)
            return
        before = self._decode(self._ids[self._context : self._told])
        after = self._decode(self._ids[self._context :])
        if len(after) > len(before) and not after.endswith("\ufffd"):  # the replacement character stands for an incomplete one
            self._context, told = self._told, len(self._ids)
            self._tell(after[len(before) :], None)
            self._told = told

    def _tell(self, text: str, finish: str | None) -> None:
        tokens = self._ids[self._told :]
        logprobs = None
        if self._asked.logprobs:
            logprobs = [float(self._sampler.logprobs[self._told + at][self.row, token]) for at, token in enumerate(tokens)]
        self._length += len(text)
        self._listener(Piece(text, tokens, logprobs, finish))


class Model:
    """A loaded model folder: applies the chat template and generates batches of answers. Custom code in the folder is never run.

    The adapter of the model's own version is merged into the weights in memory, so that answers take no longer than those of a whole
    model. Adapters of other versions are loaded beside the weights and unloaded while the model answers; a batch may contain rows of
    several. `load`, `unload` and `generate` must not run at the same time.
    """

    def __init__(self, folder: Path, threads: int, adapter: Path | None = None) -> None:
        torch.set_num_threads(threads)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, trust_remote_code=False)
        if adapter is not None:
            with hidden("bitsandbytes"):  # PEFT would import it, for adapters over weights in 4 bits, and with it torch's compiler: 2 s
                from peft import PeftModel

            model = PeftModel.from_pretrained(model, adapter, use_safetensors=True).merge_and_unload()
        self._model = model.eval().to(self.device)
        self._adapters: set[str] = set()
        self._tokenizer = with_ends(AutoTokenizer.from_pretrained(folder, padding_side="left", trust_remote_code=False), folder)
        self._encoder = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)  # its own object, because encode has its own thread
        self.context = int(getattr(self._model.config, "max_position_embeddings", 0) or 1 << 20)
        self._stops = stop_tokens(folder, self._tokenizer)

    def load(self, name: str, adapter: Path) -> None:
        """Load an adapter beside the weights. An error of peft or torch about its files leaves the model as it was."""
        with hidden("bitsandbytes"):
            from peft import PeftConfig, get_peft_model

        if not self._adapters:
            config = PeftConfig.from_pretrained(adapter)
            config.inference_mode = True
            self._model = get_peft_model(self._model, config, adapter_name=name)
        self._adapters.add(name)
        try:
            self._model.load_adapter(adapter, name, use_safetensors=True)
        except Exception:
            self.unload(name)
            raise
        self._model.eval().to(self.device)

    def unload(self, name: str) -> None:
        """Unload an adapter. Without the last one, the model is as it was before the first."""
        self._adapters.remove(name)
        if not self._adapters:
            self._model = self._model.unload()
        elif name in self._model.peft_config:
            self._model.delete_adapter(name)

    def encode(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Return the token ids of a conversation with its tools, up to the start of the assistant's turn."""
        return token_ids(self._encoder, prompt_text(self._encoder, messages, tools))

    @cached_property
    def call_format(self) -> CallFormat | None:
        """How the model's answers name tool calls; None if its chat template has no calls."""
        return call_format(lambda messages, tools: str(self._encoder.apply_chat_template(messages, tools=tools, tokenize=False)))

    def generate(self, rows: Sequence[GenerationRow], stopped: Sequence[Callable[[], bool]] | None = None) -> list[Generated]:
        """Generate one answer per row, in the order of `rows`.

        `stopped` has one function per row, which returns whether the answer is no longer wanted. The answer of such a row is incomplete.
        """
        stopped = stopped or [bool] * len(rows)
        encoded = self._tokenizer.pad({"input_ids": [row.prompt for row in rows]}, return_tensors="pt").to(self.device)
        sampler = _RowSampler(rows)
        streams = [
            _Stream(number, row, row.listener, self._decode, self._stops, sampler) for number, row in enumerate(rows) if row.listener
        ]
        mixed = {"adapter_names": [row.adapter or "__base__" for row in rows]} if any(row.adapter for row in rows) else {}
        plain = contextlib.nullcontext() if mixed or not self._adapters else self._model.disable_adapter()
        with torch.inference_mode(), plain:
            output = self._model.generate(
                **encoded,
                **mixed,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                max_new_tokens=max(row.max_tokens for row in rows),
                logits_processor=[sampler],
                stopping_criteria=[_RowEnd(rows, stopped, encoded["input_ids"].shape[1], streams)],
            )
        new = output[:, encoded["input_ids"].shape[1] :].tolist()
        return [self._cut(i, row, ids, sampler) for i, (row, ids) in enumerate(zip(rows, new, strict=True))]

    def _cut(self, i: int, row: GenerationRow, ids: list[int], sampler: _RowSampler) -> Generated:
        """Return the answer of one row, cut at its stop token or at its own limit. `ids` are padded to the longest row of the batch."""
        ids = ids[: row.max_tokens]
        stop = next((at for at, token in enumerate(ids) if token in self._stops), None)
        ids = ids if stop is None else ids[: stop + 1]
        logprobs = [float(sampler.logprobs[at][i, token]) for at, token in enumerate(ids)] if row.logprobs else None
        return Generated(self._decode(ids), ids, "length" if stop is None else "stop", logprobs)

    def _decode(self, ids: list[int]) -> str:
        written = [token for token in ids if token not in self._stops]  # the end of a turn may be no special token
        return str(self._tokenizer.decode(written, skip_special_tokens=True))

    def token_text(self, token: int) -> str:
        """Return the text of a token as it is in the vocabulary."""
        return str(self._tokenizer.convert_ids_to_tokens(token))
