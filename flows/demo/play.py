"""The demo: people use the product for three minutes. It builds a base model, adopts it, lets users talk to it, and runs
an honest cycle, then one with a bad recipe. What happens to the candidates follows from the computation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from contracts.cycle import State
from contracts.errors import ConfigError, Permanent
from flows.config.home import Home
from flows.core.decide import End
from flows.core.views import CycleView
from flows.demo.users import Crowd, Habits
from flows.demo.world import World, base_ready, build_world, start_base, traffic, write_golden
from flows.engine.house import TURN_SECONDS, House
from flows.engine.ingest import ingest
from flows.engine.installation import Installation
from flows.engine.line import adopt, open_cycle
from flows.engine.reconcile import reconcile
from flows.engine.wiring import start_receiver
from flows.engine.work import run_to_end

Say = Callable[[str], None]
_FIRST_TRAFFIC, _SEED = 900, 1
MARKER = ".ratchet-demo"
"""A file in every folder that the demo made: what it may delete again."""
BAD_RECIPE = {
    'methods = ["sft", "dpo", "grpo"]': 'methods = ["dpo"]',
    "losses = { sigmoid = 0.2, sft = 1.0 }\nbeta = 0.1\nlearning_rate = 5e-4": (
        "losses = { sigmoid = 1.0 }\nbeta = 0.1\nlearning_rate = 1e-3"
    ),
}
"""What somebody changes in the loop file before the second cycle: preference alone, at a rate far too high."""


@dataclass
class Demo:
    """One run of the demo in its own folder."""

    home: Home
    say: Say
    approve: Callable[[House, str], None]
    """Answers a request for approval as a person would."""
    started: float = field(default_factory=time.monotonic)
    world: World = field(default_factory=build_world)
    last: str = ""

    def lap(self, text: str) -> None:
        self.say(f"{time.monotonic() - self.started:6.1f} s  {text}")

    def prepare(self) -> Path:
        """Loop file and golden set into the demo's folder; returns the loop file's path."""
        self.home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home.root / MARKER).write_text("made by `ratchet demo`, which deletes this folder at its next run\n", encoding="utf-8")
        path = self.home.root / "demo.toml"
        path.write_text(demo_loop(), encoding="utf-8")
        write_golden(self.world, self.home.root / "demo_golden.jsonl")
        return path

    def play(self, beside: Callable[[], None]) -> list[CycleView]:
        """Both cycles; `beside` runs while the base model is trained."""
        loop = self.prepare()
        shop, house, crowd = self.open_shop(loop, beside)
        first = self.cycle(shop, house, crowd, "an honest cycle")
        loop.write_text(spoil(loop.read_text(encoding="utf-8")), encoding="utf-8")
        self.lap("somebody changes the recipe: preference alone, at a learning rate far too high")
        second = self.cycle(shop, shop.house(loop), crowd, "a cycle with a bad recipe")
        return [first, second]

    def open_shop(self, loop: Path, beside: Callable[[], None]) -> tuple[Installation, House, Crowd]:
        """A base model that serves, and the first traffic in the lake."""
        training = start_base(self.world, self.home.root)
        self.lap("training a small base model from scratch; it knows six of eight kinds of request")
        shop = Installation(self.home, self._progress)
        house = shop.house(loop)
        receiver = start_receiver(house.loop, self.home)
        beside()
        threading.Thread(target=house.registry.aliases, args=(house.line,), daemon=True).start()  # makes its tables meanwhile
        adopt(house, base_ready(training, self.home.root), "ada")
        for line in reconcile(house, TURN_SECONDS):
            self.lap(line)
        crowd = Crowd(house.router.url(), receiver, self.home.token(house.line).read_text(), house.loop.line.served_model, Habits(), _SEED)
        self.lap(f"{_FIRST_TRAFFIC} requests of 200 users through {house.router.url()}; every answer becomes an OTLP trace")
        tally = crowd.ask_all(traffic(self.world, _FIRST_TRAFFIC, _SEED))
        self.lap(f"{tally.right} of {tally.asked} answers were right; users rate and sometimes correct them, reviewers label a sample")
        time.sleep(1.0)  # the router sends its traces every half second
        ingest(house, wait=TURN_SECONDS)  # the service may be at it
        cursor = house.datasets.cursor()
        self.lap(f"in the lake: {cursor.traces} traces, {cursor.feedback} pieces of feedback")
        return shop, house, crowd

    def cycle(self, shop: Installation, house: House, crowd: Crowd, what: str) -> CycleView:
        """One cycle to its end, with people who answer and go on asking."""
        cycle = open_cycle(house, what)
        self.lap(f"{cycle}: {what}")
        until = time.monotonic() + 300
        with self._people(house, cycle, crowd) as trouble:
            while not isinstance(run_to_end(shop, house.cycle_view(cycle), 2.0, poll=0.3), End):
                if trouble:
                    raise Permanent(f"the simulated people could not go on: {trouble[0]}") from trouble[0]
                if time.monotonic() > until:
                    raise Permanent(f"{cycle} did not end within five minutes; `ratchet explain` says what it waits for")
        view = house.cycle_view(cycle)
        self.lap(f"{cycle} ended {view.state}: {view.reason}")
        return view

    @contextmanager
    def _people(self, house: House, cycle: str, crowd: Crowd) -> Iterator[list[Exception]]:
        """While a cycle runs, Ada answers requests, and users go on asking once a canary is out. Yields what went wrong with them."""
        stop = threading.Event()
        failed: list[Exception] = []

        def live() -> None:
            seed = house.cycle_view(cycle).number * 1000
            try:
                while not stop.wait(0.2):
                    state = house.cycle_view(cycle).state
                    if state is State.REGISTERED:
                        self.approve(house, cycle)
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

    def _progress(self, what: str, done: int, total: int) -> None:
        """What changes, once; and long work when it is done."""
        what = what.removeprefix("cycle/kubectl/")
        news = what if total == 0 else f"{what}: {total} answers" if what.startswith("asking") and done == total else None
        if news and news != self.last and "training, attempt" not in news:
            self.last = news
            self.lap(news)


def demo_loop() -> str:
    """The demo's loop file, loops/demo.toml of the source tree. ConfigError where only the packages are installed."""
    path = Path(__file__).resolve().parents[2] / "loops" / "demo.toml"
    if not path.exists():
        raise ConfigError(f"{path} does not exist: the demo runs from a clone of the repository, with `make demo`")
    return path.read_text(encoding="utf-8")


def spoil(loop: str) -> str:
    """The loop file with the bad recipe in it."""
    for good, bad in BAD_RECIPE.items():
        before, found, after = loop.partition(good)
        if not found:
            raise ConfigError(f"the demo's loop file has no line {good!r} any more")
        loop = before + bad + after
    return loop
