"""A line without routers of Ratchet, behind a real Gateway: mirrored prompts decide its rollouts, one to a promotion, one to a stop."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import httpx
import pytest

from tests.cluster.applications import Application, Weights
from tests.cluster.test_whole import answer, token_of
from tests.cluster.whole import LINE, Whole, asking
from tests.soak_results import record
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3000)]

STEPS = [1, 25, 50, 100]
HOLDBACK = 10
"""The percentage that stays with the champion at the last step (`rollout.holdback`)."""
CHAMPION, CANDIDATE = "no", "yes"
"""The answers of the two models. They tell which version has answered, as the Gateway does not."""
LAG = 5.0
"""Seconds before and after a change of the HTTPRoute was seen in which the Gateway may distribute requests by the other weights."""


def learning_from_applications(values: dict[str, Any]) -> None:
    """Change the values of the chart: the line learns from its applications alone, and a rollout begins with 1 %."""
    [line] = values["lines"]
    line["loop"] = "[[sources]]".join(one for one in line["loop"].split("[[sources]]") if '"replay"' not in one)
    for old, new in {
        "new_traces = 50": "new_traces = 100",
        "steps = [50, 100]": f"steps = {STEPS}",
        "margin = 0.9": "margin = 0.1",
        "min_seconds = 1\n": "min_seconds = 20\n",
        "mirror = 100": "mirror = 400",
    }.items():
        assert line["loop"].count(old) == 1, old
        line["loop"] = line["loop"].replace(old, new)


def rows(whole: Whole, kind: str) -> list[dict[str, Any]]:
    """Return the ledger rows of a kind of the newest cycle and its rollout."""
    found = json.loads(whole.ratchet("explain", LINE, "--json"))
    return [row["data"] for row in found if row["kind"] == kind]


def pairs(whole: Whole) -> list[float]:
    """Return the differences of the rewards of all mirrored prompts of the newest rollout."""
    return [difference for row in rows(whole, "mirrored") for _, difference in row["mirrored"]["pairs"]]


def ended(whole: Whole, state: str) -> bool:
    """Whether the newest cycle has ended in this state."""
    cycles = json.loads(whole.ratchet("status", LINE, "--json", check=False))[0]["cycles"]
    return bool(cycles) and cycles[-1]["state"] == state


def test_mirrored_prompts_promote_a_better_candidate_and_stop_a_worse_one(whole: Whole) -> None:
    whole.install(replicas=1, by_gateway=True, change=learning_from_applications)
    for component in ("prefect", "receiver", "service"):
        whole.wait_ready(component, 1)
    checked = " ".join(whole.ratchet("check", f"/lines/{LINE}/loop.toml", check=False).split())
    assert "mirrored prompts decide rollout.margin = 0.1" in checked
    whole.ratchet("adopt", f"/lines/{LINE}/loop.toml", str(whole.model), "--by", "ada")
    client = httpx.Client(timeout=30, trust_env=False)
    until(lambda: answer(whole, client) == CHAMPION, 300, 1.0, whole.story)
    whole.told("users get answers through the Gateway")
    with contextlib.ExitStack() as stack:
        weights = stack.enter_context(Weights(whole))
        token, began = token_of(whole, "traces"), time.monotonic()
        applications = [stack.enter_context(asking(Application(whole, token))) for _ in range(3)]
        figures = promoted(whole, weights, began)
        figures |= stopped(whole, weights, applications)
    answers = sorted(one for application in applications for one in application.answers)
    failures = [one for application in applications for one in application.failures]
    figures |= {"requests": len(answers) + len(failures), "failed": len(failures), "shares": shares(weights, answers)}
    whole.told(json.dumps(figures))
    assert failures == []
    assert weights.shares == [0, *STEPS[:-1], 100 - HOLDBACK, 100, 0, 1, 0]
    record("cluster_gateway_rollout", figures)


def promoted(whole: Whole, weights: Weights, began: float) -> dict[str, Any]:
    """Wait until a candidate is trained and promoted. Return the figures."""
    until(lambda: len(weights.seen) > 1, 900, 0.5, whole.story)
    opened = weights.seen[1][0]
    until(lambda: ended(whole, "promoted"), 900, 3.0, whole.story)
    until(lambda: weights.shares[-1] == 100, 60, 0.5, whole.story)
    found, done = pairs(whole), weights.seen[-1][0]
    whole.told(f"promoted by {len(found)} pairs")
    assert sum(found) > 0.9 * len(found), "the candidate is right, and the champion is not"
    noted = [row["judgement"]["tests"]["mirrored"]["n"] for row in rows(whole, "judged") if row["judgement"]["tests"]]
    assert noted[0] < noted[1] < noted[2] <= len(found), "people see in the ledger how the pairs become more"
    told = " ".join(whole.ratchet("explain", LINE).split())
    assert "a loss of 0.1 is excluded; live traffic is not attributed" in told
    time.sleep(4 * LAG)  # everybody is on the new version
    return {"trained_s": round(opened - began), "promoted_s": round(done - opened), "promoted_pairs": len(found)}


def stopped(whole: Whole, weights: Weights, applications: list[Application]) -> dict[str, Any]:
    """Roll back, and give the same model to the line again while "no" has become right. Wait until it is stopped. Return the figures."""
    for application in applications:
        application.right = None
    seen, began = len(weights.seen), time.monotonic()
    whole.ratchet("rollback", LINE, "--by", "ada")
    until(lambda: weights.shares[seen:] == [0], 240, 0.2, whole.story)
    back = weights.seen[-1][0] - began
    whole.told(f"the HTTPRoute is back {back:.1f} s after `ratchet rollback` began")
    whole.ratchet("model", "fetch", f"{LINE}/1", "/tmp/again")
    whole.ratchet("candidate", "add", LINE, "/tmp/again", "--by", "ada", "--why", "a test")
    until(lambda: len(weights.seen) > seen + 1, 600, 0.5, whole.story)
    for application in applications:
        application.right = CHAMPION
    until(lambda: ended(whole, "rolled_back"), 600, 3.0, whole.story)
    until(lambda: weights.shares[seen:] == [0, 1, 0], 60, 0.5, whole.story)
    found = pairs(whole)
    whole.told(f"stopped by {len(found)} pairs")
    assert sum(found) < -0.9 * len(found), "the champion is right, and the candidate is not"
    assert "the mean reward of the mirrored prompts is lower" in " ".join(whole.ratchet("explain", LINE).split())
    time.sleep(3 * LAG)
    return {"rollback_s": round(back, 1), "stopped_s": round(weights.seen[-1][0] - weights.seen[-2][0]), "stopped_pairs": len(found)}


def shares(weights: Weights, answers: list[tuple[float, str]]) -> list[dict[str, float]]:
    """Return what the Gateway did at each percentage, and check that it distributed as the HTTPRoute says."""
    table = []
    for share, found in weights.answered(answers, LAG):
        n, of = found.total(), found[CANDIDATE]
        assert n == of + found[CHAMPION] > 0, found
        assert abs(of / n - share / 100) <= 4 * (share * (100 - share) / 10_000 / n) ** 0.5, (share, found)
        table.append({"percent": share, "requests": n, "candidate": of})
    return table
