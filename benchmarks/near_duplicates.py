"""Recall, precision and cost of the search for near-duplicate prompts.

The truth is the exact Jaccard similarity of all pairs. Prompts are made up: questions, requests from templates, and long texts, each with
rewordings by a typo, another word, another number, or another order. The same rewordings, labelled by how they were made, compare character
5-grams with word 3-grams and thresholds: a label is the decision that a person would take. Prompts of one template, with slots of several
lengths, are measured separately: they are all similar to each other, and the search of each looks at a limited number of others.

`python benchmarks/near_duplicates.py [--prompts 6000] [--seed 1]`
"""

from __future__ import annotations

import json
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.sparse import csr_matrix

from ratchet.contracts.ids import digest, hash_share, normalise
from ratchet.materializer.training_sets.near_duplicates import THRESHOLD, Joined, NearIndex, jaccard, shingles, signature
from ratchet.materializer.training_sets.prompt_sides import FILE, PromptSides, Side

_WORDS = (
    "the a my our how do does can could when where why which what is are was to in on of for with without from after before invoice order "
    "parcel customer delivery refund account password address contract server database cluster pod deployment replica network certificate "
    "table query index column error message warning memory disk update release version policy claim insurance flight hotel ticket"
)
WORDS = _WORDS.split()
TEMPLATES = (
    "show me the logs of {w} in namespace {v} for the last {n} minutes",
    "what is {n} plus {m} and how much of it is {w}?",
    "translate the following sentence about {w} and {v} into German, and keep the number {n}",
)


def question(draw: random.Random) -> str:
    """Return a question of 8 to 40 words, a request from a template, or a long text."""
    kind = draw.random()
    if kind < 0.3:
        template = draw.choice(TEMPLATES)
        return template.format(w=draw.choice(WORDS), v=draw.choice(WORDS), n=draw.randrange(1000), m=draw.randrange(1000))
    count = draw.randrange(8, 40) if kind < 0.9 else draw.randrange(150, 400)
    return " ".join(draw.choice(WORDS) for _ in range(count)) + "?"


def typo(text: str, draw: random.Random) -> str:
    """Return the text with one letter replaced."""
    at = draw.randrange(len(text))
    return text[:at] + draw.choice("abcdefghij") + text[at + 1 :]


def polite(text: str, draw: random.Random) -> str:
    """Return the text with a few words of politeness."""
    return draw.choice(("please, ", "hi, ", "hello! ")) + text + draw.choice(("", " thanks", " thank you"))


def other_word(text: str, draw: random.Random) -> str:
    """Return the text with one word in twenty replaced."""
    words = text.split()
    for _ in range(max(1, len(words) // 20)):
        words[draw.randrange(len(words))] = draw.choice(WORDS)
    return " ".join(words)


REWORDINGS: dict[str, Callable[[str, random.Random], str]] = {"typo": typo, "polite": polite, "word": other_word}


def made(count: int, seed: int) -> Iterator[tuple[str, int, str]]:
    """Yield (text, number of its original, how it was made)."""
    draw = random.Random(seed)
    for number in range(count // 3):
        text = question(draw)
        yield text, number, "original"
        for _ in range(2):
            how = draw.choice(sorted(REWORDINGS))
            yield REWORDINGS[how](text, draw), number, how


def words_of(text: str) -> set[str]:
    """Return the word 3-grams of a text."""
    words = text.split()
    return {" ".join(words[at : at + 3]) for at in range(max(1, len(words) - 2))}


def against_exact(texts: list[str]) -> dict[str, Any]:
    """Compare the pairs that the index finds with all pairs of at least the threshold."""
    sets = [shingles(text) for text in texts]
    truth = {(i, j) for (i, one), (j, other) in combinations(enumerate(sets), 2) if jaccard(one, other) >= THRESHOLD}
    index, found = NearIndex(), set()
    for at, text in enumerate(texts):
        signed = signature(sets[at])
        found |= {(int(key), at) for key in index.near(text, signed)}
        index.add(str(at), signed, text)
    joined, exact = Joined(), Joined()
    for pairs, into in ((found, joined), (truth, exact)):
        for i, j in pairs:
            into.join(f"{i:09d}", f"{j:09d}")
    same = sum(joined.root(f"{at:09d}") == exact.root(f"{at:09d}") for at in range(len(texts)))
    return {
        "texts": len(texts),
        "pairs": len(truth),
        "recall": len(found & truth) / len(truth),
        "precision": len(found & truth) / len(found),
        "texts_in_the_exact_cluster": same / len(texts),
    }


def by_shingles(rows: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """Return, per kind of shingle and threshold, the shares of rewordings and of unrelated pairs that are at least the threshold."""
    texts = [normalise(text) for text, _, _ in rows]
    characters, words = [set(shingles(text).tolist()) for text in texts], [words_of(text) for text in texts]
    originals = {number: at for at, (_, number, how) in enumerate(rows) if how == "original"}
    draw = random.Random(7)
    apart = [(draw.randrange(len(rows)), draw.randrange(len(rows))) for _ in range(50_000)]
    apart = [(i, j) for i, j in apart if rows[i][1] != rows[j][1]]
    result = []
    for name, sets in (("5 characters", characters), ("3 words", words)):
        for threshold in (0.7, 0.8, 0.9):

            def is_near(i: int, j: int, sets: list[Any] = sets, least: float = threshold) -> bool:
                return len(sets[i] & sets[j]) / len(sets[i] | sets[j]) >= least

            line: dict[str, Any] = {"shingles": name, "threshold": threshold}
            for how in REWORDINGS:
                pairs = [(originals[number], at) for at, (_, number, kind) in enumerate(rows) if kind == how]
                line[how] = sum(is_near(i, j) for i, j in pairs) / len(pairs)
            line["unrelated"] = sum(is_near(i, j) for i, j in apart) / len(apart)
            result.append(line)
    return result


def cost(texts: dict[str, str]) -> dict[str, Any]:
    """Return CPU time and memory of the assignment of all texts, and of a second freeze with one new text."""

    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        PromptSides(Path(folder)).assign(texts, held)
        first = time.process_time() - begun
        begun = time.process_time()
        placed = PromptSides(Path(folder)).assign(texts | {digest(b"new"): "a new and different question"}, held)
        again = time.process_time() - begun
        size = (Path(folder) / FILE).stat().st_size
    tracemalloc.start()
    index = NearIndex()
    for root, text in list(texts.items())[:2000]:
        index.add(root, signature(shingles(text)), text)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "prompts": len(texts),
        "us_per_prompt": first / len(texts) * 1e6,
        "us_per_prompt_of_a_later_freeze": again / len(texts) * 1e6,
        "bytes_on_disk_per_prompt": size / len(texts),
        "bytes_in_memory_per_prompt": memory / min(2000, len(texts)),
        "neither_side": sum(one.side is Side.NEITHER for one in placed.values()),
        "clusters": len({one.cluster for one in placed.values()}),
    }


_REQUEST = (
    "You are an assistant of the support team. Read the following message of a customer, and return the category of the request, the "
    "urgency from one to five, and a polite answer of at most three sentences. Do not promise a refund. Message: {slot} End of message."
)

FORMER_US = {1: 4373, 5: 22057, 12: 98739}
"""Words in the slot -> microseconds per prompt of the former search, which compared all texts of a bucket: 2,000 prompts of the template,
measured once with this program on the same machine on 2026-11-24."""


def of_template(count: int, words: int, seed: int) -> list[str]:
    """Return prompts of one template whose slot has `words` words and a number. One in ten repeats another one with a typo."""
    draw = random.Random(f"{seed}/{words}")
    texts: list[str] = []
    while len(texts) < count:
        if texts and draw.random() < 0.1:
            texts.append(typo(draw.choice(texts), draw))
        else:
            slot = " ".join(draw.choice(WORDS) for _ in range(words))
            texts.append(_REQUEST.format(slot=f"{slot} {draw.randrange(10**6)}"))
    return [normalise(text) for text in texts]


def similarities(texts: list[str]) -> Any:
    """Return the exact Jaccard similarities of all texts as a matrix."""
    sets = [shingles(text) for text in texts]
    _, columns = np.unique(np.concatenate(sets), return_inverse=True)
    sizes = np.array([len(one) for one in sets])
    rows = np.repeat(np.arange(len(sets)), sizes)
    held = csr_matrix((np.ones(len(rows), dtype=np.int32), (rows, columns)))
    common = (held @ held.T).toarray()
    return common / (sizes[:, None] + sizes[None, :] - common)


def held(root: str) -> bool:
    """Return the decision by hash."""
    return hash_share("holdout", "s", root) < 0.2


def templated(words: int, seed: int, counts: tuple[int, ...]) -> dict[str, Any]:
    """Return the cost per prompt of one template for several numbers of prompts, and what the limited search misses in the smallest.

    The truth is the similarity of all pairs. A miss is a held-out prompt with a near-duplicate among the training prompts.
    """
    result: dict[str, Any] = {"words_in_the_slot": words, "us_per_prompt": {}}
    for count in counts:
        texts = {digest(text.encode()): text for text in of_template(count, words, seed)}
        with tempfile.TemporaryDirectory() as folder:
            begun = time.process_time()
            placed = PromptSides(Path(folder)).assign(texts, held)
            result["us_per_prompt"][str(count)] = (time.process_time() - begun) / len(texts) * 1e6
        if count > counts[0]:
            continue
        alike = similarities(list(texts.values()))
        np.fill_diagonal(alike, 0)
        near = alike >= THRESHOLD
        sides = np.array([placed[root].side for root in texts])
        across = near[np.ix_(sides == Side.TRAIN, sides == Side.HELD)]
        result |= {
            "median_similarity": float(np.median(alike)),
            "prompts_with_a_near_duplicate": int(near.any(axis=1).sum()),
            "held_out_prompts": int((sides == Side.HELD).sum()),
            "held_out_prompts_near_to_training": int(across.any(axis=0).sum()),
            "neither_side": int((sides == Side.NEITHER).sum()),
            "clusters": len({one.cluster for one in placed.values()}),
        }
    former = FORMER_US.get(words)
    result["former_us_per_prompt_of_2000"] = former
    result["former_over_present"] = round(former / result["us_per_prompt"]["2000"], 1) if former else None
    return result


@click.command()
@click.option("--prompts", default=6000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "near_duplicates.json")
def main(prompts: int, seed: int, out: Path) -> None:
    """Measure, and write the result."""
    rows = list(made(prompts, seed))
    texts = [normalise(text) for text, _, _ in rows]
    result = {
        "at": f"{datetime.now(UTC):%Y-%m-%d}",
        "seed": seed,
        "pairs": against_exact(texts[:1500]),
        "shingles": by_shingles(rows[:1500]),
        "cost": cost({digest(text.encode()): text for text in texts}),
        "templated": [templated(words, seed, (2000, 16_000)) for words in (1, 5, 12, 60)],
    }
    out.write_text(json.dumps(result, indent=2) + "\n")
    click.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
