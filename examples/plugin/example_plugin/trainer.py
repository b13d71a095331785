"""A trainer for SFT whose model learns one thing: the most frequent right answer. The module is also the program of its job."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ratchet.extend import Attempt, ConfigError, Facts, JobSpec, Outcome, Permanent, TrainingPlan, digest, job_name, parse
from ratchet.extend.job import (
    INCARNATION,
    SUPERVISOR,
    TRAINER,
    IncarnationFile,
    RunFile,
    attempt_environment,
    incarnation_folder,
)

DEFAULTS: dict[str, Any] = {"steps": 1, "min_count": 1}
"""The recipe. `min_count` is the number of demonstrations that the answer must have."""
GRACE_SECONDS = 10


class CannedSFT:
    """Trains the canned models of the example server."""

    method = "sft"

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:  # noqa: ARG002 -- nothing is measured
        """Return the recipe with the changes of the loop file."""
        for key, value in changes.items():
            if key not in DEFAULTS:
                near = get_close_matches(key, DEFAULTS, n=1)
                raise ConfigError(f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(DEFAULTS)}"))
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{key} must be a whole number above 0, found {value!r}")
        return DEFAULTS | dict(changes)

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the job: Ratchet's supervisor runs this module and publishes the model that it writes."""
        if plan.method != self.method:
            raise Permanent(f"the plan asks for {plan.method}, not {self.method}")
        spec = JobSpec(
            name="",
            plan=plan.id,
            attempt=attempt.number,
            command=SUPERVISOR,
            environment=attempt_environment(attempt, GRACE_SECONDS) | TRAINER.to_env(__name__),
            inputs={RunFile.MODEL.value: plan.start.files, RunFile.DEMONSTRATIONS.value: plan.demonstrations},
            plan_json=plan.model_dump_json(),
            grace_seconds=GRACE_SECONDS,
            nodes=attempt.nodes,
            gpus=attempt.gpus,
        )
        return spec.model_copy(update={"name": job_name(plan.id, attempt.number, digest(spec))})


def main() -> None:
    """Train in the run folder: read its inputs, write the model to iN/model, and last the result to iN/result.json."""
    from pyarrow import parquet  # only the job needs it

    incarnation = Path(incarnation_folder(INCARNATION.get(os.environ)))
    plan = parse(TrainingPlan, Path(RunFile.PLAN).read_bytes())
    answers = Counter(parquet.read_table(RunFile.DEMONSTRATIONS).column("answer").to_pylist())
    (answer, count) = min(answers.items(), key=lambda item: (-item[1], item[0]))
    result = {"outcome": Outcome.DONE.value, "reason": "", "step": plan.recipe["steps"], "metrics": {"demonstrations": float(count)}}
    if count < plan.recipe["min_count"]:
        result |= {"outcome": Outcome.PERMANENT.value, "reason": f"{count} demonstrations, min_count is {plan.recipe['min_count']}"}
    else:
        model = Path(shutil.copytree(RunFile.MODEL, incarnation / IncarnationFile.MODEL, dirs_exist_ok=True))
        header = json.dumps({"__metadata__": {"answer": answer}}).encode()  # training may change the weights only
        (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    partial = incarnation / "result.partial"
    partial.write_text(json.dumps(result))
    partial.replace(incarnation / IncarnationFile.RESULT)


if __name__ == "__main__":
    main()
