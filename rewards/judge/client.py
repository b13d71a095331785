"""Client of one judge, and what becomes of a question. The requests themselves are in `round.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ratchet.contracts.errors import Inconclusive
from ratchet.rewards.judge.messages import Question
from ratchet.rewards.judge.options import EndpointOptions
from ratchet.rewards.judge.verdict import Outcome
from ratchet.runtime.secrets.api_key import api_key


@dataclass(frozen=True)
class Answer:
    """What became of one question."""

    outcome: Outcome
    value: float | None
    tokens: int
    """Tokens of all requests for it, prompts and replies."""


class BudgetSpent(Inconclusive):
    """The next request could exceed the budget of tokens."""


class JudgeClient:
    """Client of one judge. `name` is that of the reward, for messages."""

    def __init__(self, name: str, options: EndpointOptions) -> None:
        self._name = name
        self._options = options

    def ask(self, questions: Sequence[Question], left: int, record: Callable[[int, Answer], None]) -> None:
        """Ask all questions, and call `record` with the index of each one and its answer, as soon as it is known.

        `left` is the number of tokens that may be used. Raises BudgetSpent if it is not enough, Retryable if the server does not answer,
        ConfigError without the API key, and Permanent if the server rejects the requests as such. Answers up to then are recorded.
        """
        if questions:
            from ratchet.rewards.judge.round import Round  # a training job that asks nothing may lack httpx

            requests = Round(self._name, self._options, self._key(), questions, left, record)
            with ThreadPoolExecutor(1) as pool:  # the caller's thread may run an event loop of its own
                running = pool.submit(asyncio.run, requests.run())
                try:
                    running.result()
                except BaseException:  # for example Ctrl-C, which reaches this thread only
                    requests.stop()
                    raise

    def _key(self) -> str | None:
        return api_key(f"reward {self._name!r}", self._options.key_env, self._options.key_file)
