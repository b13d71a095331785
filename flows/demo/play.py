"""The demo script: simulated users and a reviewer use the product for four to five minutes.

It trains a base model, adopts it, sends user traffic, and runs two cycles: one with a normal recipe and one with a bad recipe. The
results of both cycles are computed, not scripted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.contracts.data.senders import Role
from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.steps import State
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.installation import Installation
from ratchet.flows.composition.services import start_receiver
from ratchet.flows.config.home import Home
from ratchet.flows.core.decide import End
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.demo.narration import narrate
from ratchet.flows.demo.users import Crowd, Habits
from ratchet.flows.demo.world import DemoWorld, base_ready, build_world, start_base, traffic, write_golden
from ratchet.flows.engine.context import TURN_SECONDS, LineContext
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import adopt, open_cycle
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.work import run_to_end

Say = Callable[[str], None]
_FIRST_TRAFFIC, _SEED = 1600, 1
MARKER = ".ratchet-demo"
"""Marker file in every folder created by the demo. The demo deletes only folders that contain it."""
BAD_RECIPE = {
    'methods = ["sft", "dpo", "grpo"]': 'methods = ["dpo"]',
    "losses = { sigmoid = 0.2, sft = 1.0 }\nbeta = 0.1\nmost_steps = 250": ("losses = { sigmoid = 1.0 }\nlearning_rate = 1e-3\nsteps = 60"),
}
"""Changes to the loop file before the second cycle: preference loss only, with a learning rate that is far too high, for a fixed number of
steps, so that nothing but the gate holds the result back."""


_NORMAL = ("training, attempt", "the rollout", "approval of ")
"""Beginnings of the reasons for which a cycle of the demo normally waits."""


@dataclass
class Demo:
    """One run of the demo in its own folder. `say` receives its messages."""

    home: Home
    say: Say
    approve: Callable[[LineContext, str], None]
    """Answers the pending approval request of the cycle with the given id."""
    started: float = field(default_factory=time.monotonic)
    world: DemoWorld = field(default_factory=build_world)
    told: dict[str, int] = field(default_factory=dict)
    """Cycle -> number of its sentences that were reported."""
    troubles: set[str] = field(default_factory=set)
    """Troubles that were reported."""

    def lap(self, topic: str, text: str) -> None:
        """Report a message with the seconds since the start of the demo. `topic` is one word that names the part of the loop."""
        self.say(f"{time.monotonic() - self.started:4.0f} s  {topic:<9} {text}")

    def tell(self, context: LineContext, cycle: str) -> None:
        """Report what has happened in the cycle since the last call."""
        sentences = narrate(context.cycle_view(cycle), context.rollout_view(rollout_stream(cycle)))
        for one in sentences[self.told.get(cycle, 0) :]:
            self.lap(one.topic, one.text)
        self.told[cycle] = len(sentences)

    def prepare(self) -> Path:
        """Write the loop file and the golden set to the demo's folder; return the path of the loop file."""
        self.home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home.root / MARKER).write_text("created by `ratchet demo`, which deletes this folder on its next run\n", encoding="utf-8")
        path = self.home.root / "demo.toml"
        path.write_text(demo_loop(), encoding="utf-8")
        write_golden(self.world, self.home.root / "demo_golden.jsonl")
        return path

    def play(self, beside: Callable[[], None]) -> list[CycleView]:
        """Run both cycles and return their final states. `beside` is called while the base model is training."""
        loop = self.prepare()
        installation, context, crowd = self.open_installation(loop, beside)
        self.say("\nFirst cycle: a normal training recipe. The candidate should be better.")
        first = self.cycle(installation, context, crowd, "a cycle with a normal recipe")
        loop.write_text(spoil(loop.read_text(encoding="utf-8")), encoding="utf-8")
        self.say("\nSecond cycle: a bad recipe on purpose, with a learning rate that is far too high. The gate should notice it.")
        second = self.cycle(installation, installation.context(loop), crowd, "a cycle with a bad recipe")
        return [first, second]

    def open_installation(self, loop: Path, beside: Callable[[], None]) -> tuple[Installation, LineContext, Crowd]:
        """Train, adopt and serve the base model, and ingest the first traffic. `beside` is called while the base model is training."""
        training = start_base(self.world, self.home.root)
        self.lap("Model", "a small model is trained from scratch; it learns six of eight kinds of requests")
        installation = Installation(self.home, self._progress)
        context = installation.context(loop)
        receiver = start_receiver(context.loop, self.home)
        beside()
        # The first call of the registry creates its tables; do that while the base model is training.
        threading.Thread(target=context.registry.aliases, args=(context.line,), daemon=True).start()
        adopt(context, base_ready(training, self.home.root), "ada")
        reconcile(context, TURN_SECONDS)
        crowd = Crowd(context.router.url(), receiver, self._tokens(context.line), context.loop.line.served_model, Habits(), _SEED)
        self.lap("Traffic", f"200 simulated users send {_FIRST_TRAFFIC} requests to it; each answer is recorded as a trace")
        tally = crowd.ask_all(traffic(self.world, _FIRST_TRAFFIC, _SEED))
        time.sleep(1.0)  # the router exports its traces every 0.5 s
        ingest(context, wait=TURN_SECONDS)  # the service may hold the lease for its own ingest
        cursor = context.datasets.cursor()
        right = f"{100 * tally.right / tally.asked:.0f} % of the answers were right"
        self.lap("Traffic", f"{right}; users and reviewers gave {cursor.feedback} ratings and corrections")
        return installation, context, crowd

    def _tokens(self, line: str) -> dict[Role, str]:
        """Create the credentials of the simulated users and reviewers, and return their tokens."""
        store = open_credentials(self.home, line)
        return {role: store.add(name, [role]).read_text() for name, role in (("users", Role.FEEDBACK), ("reviewers", Role.REVIEW))}

    def cycle(self, installation: Installation, context: LineContext, crowd: Crowd, what: str) -> CycleView:
        """Run one cycle to its end, with simulated users and approvals. `what` is the reason for opening the cycle.

        Returns the final state. Raises Permanent if the simulation fails or the cycle does not end within fifteen minutes.
        """
        cycle = open_cycle(context, what)
        frozen, until = installation.cycle_context(context.cycle_view(cycle)), time.monotonic() + 900
        with self._people(context, cycle, crowd) as trouble:
            while not isinstance(run_to_end(frozen, context.cycle_view(cycle), 2.0, poll=0.3), End):
                if trouble:
                    raise Permanent(f"the simulated users failed: {trouble[0]}") from trouble[0]
                if time.monotonic() > until:
                    raise Permanent(f"{cycle} did not end within fifteen minutes; `ratchet explain` shows its state")
        self.tell(context, cycle)
        return context.cycle_view(cycle)

    @contextmanager
    def _people(self, context: LineContext, cycle: str, crowd: Crowd) -> Iterator[list[Exception]]:
        """Answer approval requests, and send user traffic during the rollout, for the duration of the block. Yields the list of errors."""
        stop = threading.Event()
        failed: list[Exception] = []

        def live() -> None:
            seed = context.cycle_view(cycle).number * 1000
            try:
                while not stop.wait(0.2):
                    self.tell(context, cycle)
                    state = context.cycle_view(cycle).state
                    if state is State.REGISTERED:
                        self.approve(context, cycle)
                    elif state is State.ROLLING:
                        seed += 1
                        crowd.ask_all(traffic(self.world, 80, seed))
            except Exception as error:
                failed.append(error)

        people = threading.Thread(target=live, daemon=True)
        people.start()
        try:
            yield failed
        finally:
            stop.set()
            people.join(30)

    def _progress(self, what: str, done: int, total: int) -> None:  # noqa: ARG002
        """Report each trouble once. What a cycle normally waits for is not reported: `narrate` tells what it has done."""
        _, waits, reason = what.partition(" waits: ")
        if waits and not reason.startswith(_NORMAL) and " is leased by " not in reason and reason not in self.troubles:
            self.troubles.add(reason)
            self.lap("Waiting", reason)


def demo_loop() -> str:
    """Return the text of the demo's loop file."""
    return Path(__file__).with_name("demo.toml").read_text(encoding="utf-8")


def spoil(loop: str) -> str:
    """Return the loop file's text with the bad recipe. Raises ConfigError if the text to replace is missing."""
    for good, bad in BAD_RECIPE.items():
        before, found, after = loop.partition(good)
        if not found:
            raise ConfigError(f"the demo's loop file does not contain {good!r}")
        loop = before + bad + after
    return loop
