"""Plays the users of the quickstart's line, who send requests to its router and rate the answers. Draws depend only on a seed."""

from __future__ import annotations

import time
from collections.abc import Callable

from ratchet.contracts.data.senders import Role
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.steps import State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.composition.services import start_receiver
from ratchet.flows.demo.users import Crowd, Habits, Tally
from ratchet.flows.demo.world import build_world, traffic
from ratchet.flows.engine.context import LineContext

ROUND = 80
"""Requests of a round."""
_SEED = 7
_NAMES = {"example-users": Role.FEEDBACK, "example-reviewers": Role.REVIEW}
_PAUSE = 1.0


class ExampleUsers:
    """The users of a line. `say` receives what happens."""

    def __init__(self, installation: Installation, context: LineContext, say: Callable[[str], None]) -> None:
        self._context = context
        self._say = say
        tokens = self._tokens(installation)
        receiver = start_receiver(context.loop, installation.home)
        self._crowd = Crowd(context.router.url(), receiver, tokens, context.loop.line.served_model, Habits(), _SEED)

    def play(self, rounds: int | None) -> Tally:
        """Play `rounds` rounds, or as many as it takes until the open cycle has ended; one if no cycle is open. Return the counts.

        Raises Retryable if no request of a round is answered.
        """
        view = self._context.line_view()
        cycle, begun = view.open_cycle, view.cycles * 10_000
        world, total, number = build_world(), Tally(), 0
        while number < (rounds or 1 if cycle is None else rounds or number + 1):
            if cycle is not None and (state := self._context.cycle_view(cycle).state) is not State.ROLLING and rounds is None:
                if self._context.cycle_view(cycle).ended:
                    self._say(f"{cycle} ended {state}; `ratchet explain {self._context.line}` says why")
                    break
                time.sleep(_PAUSE)
                continue
            number += 1
            told = self._crowd.ask_all(traffic(world, ROUND, begun + number))
            if told.failed == told.asked:
                raise Retryable(f"no request was answered at {self._context.router.url()}; start `ratchet serve` first, then try again")
            total = Tally(total.asked + told.asked, total.failed + told.failed, total.right + told.right)
            self._say(f"round {number}: {told.asked} requests, {told.failed} failed, {told.right} right answers")
        return total

    def _tokens(self, installation: Installation) -> dict[Role, str]:
        """Return the tokens of the users' and the reviewers' credentials, which are created once."""
        store, found = open_credentials(installation.home, self._context.line), {}
        for name, role in _NAMES.items():
            try:
                file = store.token_file(name) if store.read().named(name) else store.add(name, [role])
                found[role] = file.read_text()
            except FileNotFoundError:
                raise ConfigError(f"the token file of {name} is gone; `ratchet token rotate LOOP.toml {name}` makes a new one") from None
        return found
