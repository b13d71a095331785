"""Generation in the driver process in place of vLLM: the same interface, sampling from a transformers model on the CPU.

The random numbers of an answer depend only on the tokens of its prompt, its place in the batch and the kind of call. So two runs that have
the same weights and draw the same prompts sample the same answers, which makes a resumed run comparable with an undisturbed one.
"""

from __future__ import annotations

import zlib
from typing import Any

import ray
import torch
from cpu_stand_ins import WEIGHTS
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.interfaces import GenerationInterface, verify_right_padding


class CpuGeneration(GenerationInterface):
    """Samples with the weights that the policy workers wrote last."""

    def __init__(self, cluster: Any, config: Any, **_: Any) -> None:
        from transformers import AutoModelForCausalLM

        assert (config["top_p"], config["top_k"]) == (1.0, None), "the stand-in samples from all tokens"
        self.cfg = config
        self.model = AutoModelForCausalLM.from_pretrained(config["model_name"], dtype=torch.float32).eval()
        self.info: dict[str, Any] = {}
        self.stale = False

    def init_collective(self, ip: str, port: int, world_size: int, **_: Any) -> list[Any]:
        return []

    def prepare_refit_info(self, info: dict[str, Any]) -> None:
        self.info = info

    def prepare_for_generation(self, *_: Any, **__: Any) -> bool:
        return True

    def finish_generation(self, *_: Any, **__: Any) -> bool:
        return True

    def shutdown(self) -> bool:
        return True

    def update_weights_via_ipc_zmq(self) -> list[Any]:
        self.stale = True
        return [ray.put(True)]

    def update_weights_from_collective(self) -> list[Any]:
        raise RuntimeError("dedicated generation gets its weights by NCCL, which has no stand-in")

    def _load(self) -> None:
        """Load the weights of the policy. Every tensor that the release announced must be there, and no other."""
        if not self.stale:
            return
        state = torch.load(WEIGHTS)
        assert set(state) == set(self.info), sorted(set(state) ^ set(self.info))
        found = self.model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
        assert not found.unexpected_keys, found
        assert set(found.missing_keys) <= {"lm_head.weight"}, found  # a tied head
        self.stale = False

    @torch.no_grad()
    def generate(self, data: Any, greedy: bool = False) -> Any:
        """Return the answers, the log-probabilities of their tokens, and their lengths. Padding is on the right."""
        pad = self.cfg["_pad_token_id"]
        verify_right_padding(data, pad_value=pad)
        self._load()
        ids, lengths = data["input_ids"], data["input_lengths"]
        number, width = ids.shape
        stops, most = set(self.cfg.get("stop_token_ids") or []), self.cfg["max_new_tokens"]
        random = torch.Generator().manual_seed(zlib.crc32(ids.numpy().tobytes()))
        out = torch.full((number, width + most), pad, dtype=torch.long)
        logprobs = torch.zeros(number, width + most)
        out[:, :width] = ids
        at, rows = lengths.clone(), torch.arange(number)
        done, cut = torch.zeros(number, dtype=torch.bool), torch.ones(number, dtype=torch.bool)
        for _ in range(most):
            if bool(done.all()):
                break
            top = int(at.max())
            mask = torch.arange(top)[None] < at[:, None]
            logits = self.model(input_ids=out[:, :top], attention_mask=mask.long()).logits  # causal, so padding on the right is exact
            scores = (logits[rows, at - 1].float() / (self.cfg["temperature"] or 1.0)).log_softmax(-1)
            token = scores.argmax(-1) if greedy else torch.multinomial(scores.exp().nan_to_num(1.0), 1, generator=random).squeeze(-1)
            for row in range(number):
                if not done[row]:
                    out[row, at[row]] = token[row]
                    logprobs[row, at[row]] = scores[row, token[row]]
                    at[row] += 1
                    if int(token[row]) in stops:
                        done[row], cut[row] = True, False
        top = int(at.max())
        return BatchedDataDict(
            {
                "output_ids": out[:, :top],
                "logprobs": logprobs[:, :top],
                "generation_lengths": at - lengths,
                "unpadded_sequence_lengths": at,
                "truncated": cut,
            }
        )
