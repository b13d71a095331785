"""The holdout split of a line: its settings, which are bound at first use, and the sides of its prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import polars as pl

from ratchet.contracts.data.datasets import HoldoutEdition, NearRule, NearRung, TrainingSides
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import AFTER, END, NORMALISER, UNTIL, Digest, SkippedTexts, digest, root_id, root_text
from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import Artifacts, Compute
from ratchet.contracts.ports.compute import Item
from ratchet.contracts.schema import parse, stamped, unstamped
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.training_sets.development import Part, is_development, part_of, prompts_by_part
from ratchet.materializer.training_sets.holdout import held_out
from ratchet.materializer.training_sets.near_duplicates import (
    RECIPE,
    WHOLE,
    NearIndex,
    Shingler,
    prompt_clusters,
    signature,
)
from ratchet.materializer.training_sets.prompt_sides import Placed, PromptSides, Roots, Side
from ratchet.materializer.training_sets.questions import RUNGS, Question, compared, least_similarity, template_in
from ratchet.materializer.workers.signing import Signing
from ratchet.rewards.scorer_set import ScorerSet
from ratchet.runtime.compute.inline import InlineCompute

_SAMPLED = 300
"""Questions that are compared with one another to find a template."""
_SIGNED = 2000
"""Prompts whose signatures are stored with one commit: a quarter of a second of work."""


def edition_name(line: str, number: int, skipped: SkippedTexts = ()) -> str:
    """Return the name that a holdout edition of a line is bound to. Edition 0, that of previews, has one for each value of `skipped`."""
    return f"edition/{line}/{number}" + (f"/{digest(list(skipped))[:12]}" if number == 0 and skipped else "")


def forbidden_changes(loop: Loop, artifacts: Artifacts) -> list[str]:
    """Return how the settings of a line differ from those by which its prompts were split, if prompts would change their sides.

    Nothing is bound. Empty for a line that was not split yet.
    """
    line, settings, found = loop.line.name, loop.holdout, list[str]()
    if not settings.near_duplicates and artifacts.resolve(f"near/{line}") is not None:
        found.append(_switched_off(line))
    first = artifacts.resolve(edition_name(line, 1))
    if first is not None and (known := parse(HoldoutEdition, artifacts.get(first)).skipped) != settings.skipped:
        kinds = {"skip_messages": "", "skip_greetings": END, "question_after": AFTER, "question_until": UNTIL}
        then, now = ({name: _of_kind(end, every) for name, end in kinds.items()} for every in (known, settings.skipped))
        different = " and ".join(f"holdout.{name} = {then[name]}" for name in kinds if then[name] != now[name])
        found.append(
            f"line {line!r} was split with {different}, and prompts would change their sides; restore this, or create a line "
            "with a new name"
        )
    if settings.development > (share := _development(line, artifacts)[0]):
        found.append(_raised(line, share))
    bound, wanted = artifacts.resolve(f"split/{line}"), _values(loop)
    before = wanted if bound is None else unstamped(artifacts.get(bound), "split")
    keys = {"salt": "line.salt", "fraction": "holdout.fraction", "normaliser": "the normaliser"}
    if changed := [f"{keys[name]} = {before.get(name)!r}" for name in wanted if before.get(name) != wanted[name]]:
        found.append(
            f"line {line!r} was split with {' and '.join(changed)}, and prompts would change their sides; restore this, or create a line "
            "with a new name"
        )
    return found


def _of_kind(end: str, known: SkippedTexts) -> list[str]:
    """Return the texts of those of `known` that end with `end`, one of the characters of `ids`; without it, those without any."""
    return [text.removesuffix(end) for text in known if (text[-1:] == end if end else not text.endswith((END, AFTER, UNTIL)))]


def _values(loop: Loop) -> dict[str, Any]:
    """Return the values that are bound when a line is split."""
    return {"salt": loop.line.salt, "fraction": loop.holdout.fraction, "normaliser": NORMALISER}


def _switched_off(line: str) -> str:
    return (
        f"line {line!r} was split with near-duplicates on one side, and prompts would change their side; "
        "remove holdout.near_duplicates, or create a line with a new name"
    )


def _raised(line: str, share: float) -> str:
    return (
        f"line {line!r} was split with holdout.development = {share:g}, and its models were trained on the other prompts; "
        "set this value or a lower one, or create a line with a new name"
    )


def _development(line: str, artifacts: Artifacts) -> tuple[float, int]:
    """Return the share of development prompts that was bound last, and how many were bound; (1, 0) without one."""
    known, number = 1.0, 0
    while (bound := artifacts.resolve(_share(line, number))) is not None:
        known, number = unstamped(artifacts.get(bound), "development")["fraction"], number + 1
    return known, number


def _share(line: str, number: int) -> str:
    return f"development/{line}" + (f"/{number}" if number else "")


class Split:
    """The split of one line."""

    def __init__(self, loop: Loop, artifacts: Artifacts, lake: Lake, rewards: ScorerSet) -> None:
        self._loop = loop
        self._line = loop.line
        self._settings = loop.holdout
        self._skipped = loop.holdout.skipped
        self._artifacts = artifacts
        self._lake = lake
        self._rewards = rewards
        self._measured: tuple[NearRung, ...] = ()

    def pin(self, edition: int) -> None:
        """Bind salt, fraction and normaliser at first use. A later change would mix training and holdout prompts permanently.

        What holds for near-duplicates is bound before, because it depends on whether the line was split before. The share of development
        prompts is not bound for edition 0, that of previews: a preview must not lower it for good. Raises ConfigError if the line was
        split with other settings.
        """
        self.near()
        self._refuse_changes()
        self._pin_development(is_preview=edition == 0)
        name, split = self._line.name, _values(self._loop)
        bound = self._artifacts.bind(f"split/{name}", self._artifacts.put(stamped(split)))
        if bound != self._artifacts.put(stamped(split)):
            self._refuse_changes()  # another process has bound other values meanwhile

    def _refuse_changes(self) -> None:
        """Raise ConfigError for the first of the forbidden changes."""
        if changes := forbidden_changes(self._loop, self._artifacts):
            raise ConfigError(changes[0])

    def near(self) -> bool:
        """Return whether near-duplicates are on one side, and bind it if they are. Raises ConfigError if it was switched off afterwards."""
        line, wanted = self._line.name, self._settings.near_duplicates
        if self._artifacts.resolve(f"near/{line}") is not None:
            if not wanted:
                raise ConfigError(_switched_off(line))
            return True
        if not wanted:
            return False
        is_new = self._artifacts.resolve(f"split/{line}") is None
        self._artifacts.bind(f"near/{line}", self._artifacts.put(stamped({"recipe": RECIPE, "founding": not is_new})))
        return True

    def place(self, roots: Roots, known: Callable[[], Sequence[Question]]) -> Callable[[Sequence[Digest]], list[Placed]]:
        """Decide and store the sides of new prompts. Returns a function that returns the sides of sorted roots. Raises Retryable.

        `known` returns the questions whose right answer is known. They may raise the similarity of near-duplicates before.
        """

        def is_held(root: Digest) -> bool:
            return held_out(root, self._line.salt, self._settings.fraction)

        if not self.near():
            return lambda found: [Placed(Side(is_held(root)), root) for root in found]
        bound = self._artifacts.resolve(f"near/{self._line.name}")
        founding = bound is not None and bool(unstamped(self._artifacts.get(bound), "near-duplicates")["founding"])
        self._measure(known)
        sides = PromptSides(self._lake.place, *self.nearness())
        with self._lake.writing():
            sides.place(roots, is_held, founding)
        return sides.placed

    def similarity(self) -> float:
        """Return the least similarity of near-duplicates: that of the loop file, or the highest one that was ever measured."""
        if self._settings.similarity != "auto":
            return self._settings.similarity
        return max([RUNGS[0], *(rung for rung in RUNGS[1:] if self._artifacts.resolve(self._risen(rung)) is not None)])

    def nearness(self) -> tuple[float, Shingler]:
        """Return the least similarity of near-duplicates, and what makes the shingles that are compared."""
        return self.similarity(), self._shingler()

    def _shingler(self) -> Shingler:
        """Return what makes the shingles of prompts: without those of the templates that were ever found."""
        found = WHOLE
        while (bound := self._artifacts.resolve(self._template(found.version + 1))) is not None:
            shingles = bytes.fromhex(unstamped(self._artifacts.get(bound), "template")["shingles"])
            found = Shingler(shingles, found.version + 1)
        return found

    def rule(self) -> NearRule | None:
        """Return what counts as a near-duplicate, with what the last call of `place` has measured. None: nothing does."""
        if not self.near():
            return None
        template = len(self._shingler().template) // np.dtype(np.uint32).itemsize
        return NearRule(similarity=self.similarity(), measured=self._measured, template=template)

    def _template(self, number: int) -> str:
        return f"template/{self._line.name}/{number}"

    def _look_for_templates(self, questions: Sequence[Question]) -> None:
        """Bind for good what is left out of the prompts, if known questions share a template that is not known yet.

        Otherwise all prompts of an application that writes a long instruction into each user message would count as one.
        """
        before = self._shingler()
        half = _SAMPLED // 2
        sample = [*questions[:half], *questions[half:][-half:]]  # golden questions come first, those of the traffic last
        if (found := template_in(sample, self._rewards.compare, self.similarity(), before)) is not None:
            self._artifacts.bind(self._template(found.version), self._artifacts.put(stamped({"shingles": found.template.hex()})))

    def _risen(self, similarity: float) -> str:
        return f"similarity/{self._line.name}/{similarity:g}"

    def _measure(self, known: Callable[[], Sequence[Question]]) -> None:
        """Raise the similarity for good if known right answers show that more similar prompts are different questions."""
        if self._settings.similarity == "auto":
            questions = known()
            self._look_for_templates(questions)
            self._measured = compared(questions, self._rewards.compare, self._shingler())
            if (least := least_similarity(self._measured)) > self.similarity():
                self._artifacts.bind(
                    self._risen(least), self._artifacts.put(stamped({"measured": [one.model_dump() for one in self._measured]}))
                )

    def sign(self, compute: Compute) -> None:
        """Compute the signatures of the prompts that were ingested since the last call. An interrupted call goes on where it ended.

        Does nothing if near-duplicates are not considered. Decides no side: that happens when a prompt may first be used.
        """
        newest = self._lake.snapshot("traces")
        threshold, make = self.nearness()  # once: another process may bind a template meanwhile
        sides = PromptSides(self._lake.place, threshold, make)
        if not self._settings.near_duplicates or newest is None or newest == (since := sides.signed()):
            return
        for part in self._lake.parts_added("traces", since, ("messages",)):
            added = part["messages"].drop_nulls().unique()
            engine = compute if len(added) > _SIGNED else InlineCompute()
            for signatures in engine.map(Signing(make), self._unsigned(added, sides)):
                with self._lake.writing():
                    sides.keep(signatures)
        with self._lake.writing():
            sides.sign_until(newest)

    def _unsigned(self, added: pl.Series, sides: PromptSides) -> Iterator[Item]:
        """Yield the roots and texts of the prompts without a signature, _SIGNED prompts at a time."""
        for at in range(0, len(added), _SIGNED):
            prompts = [orjson.loads(messages) for messages in added[at : at + _SIGNED]]
            texts = {root_id(messages, self._skipped): root_text(messages, self._skipped) for messages in prompts}
            with self._lake.writing():
                unsigned = sides.unsigned(texts)
            yield Item(f"prompts {at + 1:,} and on", {root: texts[root] for root in unsigned})

    def _pin_development(self, is_preview: bool) -> None:
        """Bind the share of development prompts on the training side. Raises ConfigError if it is above the share that was bound last.

        A lower share makes some of them training prompts. A higher one would measure models by prompts that they were trained on.
        """
        wanted, (known, number) = self._settings.development, _development(self._line.name, self._artifacts)
        if wanted > known:
            raise ConfigError(_raised(self._line.name, known))
        if wanted < known and not is_preview:
            self._artifacts.bind(_share(self._line.name, number), self._artifacts.put(stamped({"fraction": wanted})))
            self._pin_development(is_preview)  # another process may have bound another share meanwhile

    def training_sides(self, prompts: pl.DataFrame) -> TrainingSides:
        """Return the parts and the clusters of `prompts` (records.PROMPTS) of the training side."""
        parts = self.by_part(prompts)
        known = PromptSides(self._lake.place).clusters() if self.near() else {}
        rows = prompts.select("prompt_id", "prompt").iter_rows()
        roots = {prompt: root_id(orjson.loads(text), self._skipped) for prompt, text in rows}
        clusters = {prompt: known[root][1][0] for prompt, root in roots.items() if root in known}
        return TrainingSides(development=tuple(parts[Part.DEVELOPMENT]), neither=tuple(parts[Part.NEITHER]), clusters=clusters)

    def by_part(self, prompts: pl.DataFrame) -> dict[Part, list[str]]:
        """Return the ids of the `prompts` (records.PROMPTS) of the training side by their parts."""
        return prompts_by_part(prompts, self.parts, self._skipped)

    def parts(self, roots: Iterable[Digest]) -> dict[Digest, Part]:
        """Return the part of each prompt of the training side."""
        chosen = is_development(self._line.salt, self._settings.development)
        known = PromptSides(self._lake.place).clusters() if self.near() else {}
        placed = {root: known.get(root, (root, (root,))) for root in roots}
        return {root: part_of(own, joined, chosen) for root, (own, joined) in placed.items()}

    def clusters(self, prompts: Mapping[str, str]) -> dict[str, str]:
        """Map the ids of prompts, which are JSON lists of messages, to clusters of near-duplicates."""
        return prompt_clusters(prompts, *self.nearness(), self._skipped)

    def like(self, roots: Roots, golden: Mapping[Digest, str], is_asked: Callable[[Sequence[Digest]], Sequence[Digest]]) -> list[Digest]:
        """Return the roots that are near-duplicates of golden prompts, which are no part of the split.

        `golden` maps roots to their normalised texts. `is_asked` returns those of sorted roots that are compared.
        """
        if not golden or not self.near():
            return []
        (threshold, make), alike = self.nearness(), list[Digest]()
        index, sides = NearIndex(threshold, make), PromptSides(self._lake.place, threshold, make)
        for root, text in golden.items():
            index.add(root, signature(make(text)), text)
        for number in range(roots.count):
            asked = is_asked(roots.range(number))
            for at in range(0, len(asked), _SIGNED):
                some = asked[at : at + _SIGNED]
                known, texts = sides.signatures(some), roots.texts(some)
                alike += [root for root in some if index.near(texts[root], known[root] if root in known else signature(make(texts[root])))]
        return alike
