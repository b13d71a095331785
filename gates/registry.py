"""`Registry` in MLflow: a derived copy of the ledger's versions. The ledger remains authoritative.

A version refers to the model folder in the artifact store, without an upload and without a pickled MLflow flavour. MLflow stores lineage
tags, metrics and aliases. mlflow is imported at first use, because the import takes seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.training import StepFigures
from ratchet.contracts.serving import ModelVersion
from ratchet.runtime.hidden_package import hidden
from ratchet.runtime.telemetry import disable_telemetry

log = logging.getLogger("ratchet.registry")
_TAG = "ratchet.tag"
_NAME_LENGTH = 250
"""Maximum length of a metric name in MLflow."""
CARD = "model_card.md"
"""Name of the model card among the files of a version's run."""
_DESCRIPTION_LENGTH = 4500
"""Maximum length of a description. MLflow stores up to 5000 characters."""
_BATCH = 1000
"""Maximum number of metrics per MLflow request."""
_INVALID = "INVALID_PARAMETER_VALUE"


class MlflowRegistry:
    """`Registry` at an MLflow tracking URI: a server, or SQLite on the local machine.

    `folder` contains the local files of MLflow, including run artifacts.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self._folder = folder

    @cached_property
    def _client(self) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        return _open_client(self._uri)

    def register(
        self,
        version: ModelVersion,
        folder: Path,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        steps: Sequence[StepFigures] = (),
    ) -> str:
        """Register the version with its tags, metrics and training curves, once per version tag."""
        with _reachable(self._uri):
            self._model(version.line)
            found = self._version(version.line, version.tag)
            if found is None:
                run = self._run(version, metrics, steps)
                known = {**tags, _TAG: version.tag}
                found = self._client.create_model_version(version.line, source=str(folder.absolute()), run_id=run, tags=known).version
        return f"models:/{version.line}/{found}"

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Set the alias of the line. Raises `Retryable` if the version is not registered yet."""
        with _reachable(self._uri):
            found = self._version(line, tag)
            if found is None:
                raise Retryable(f"the registry has no version {tag} of {line}; the next reconciliation registers it")
            self._client.set_registered_model_alias(line, alias, found)

    def describe(self, line: str, tag: str, card: str) -> None:
        """Replace the description of a version by its model card, and store the card as a file of the version's run.

        Raises `Retryable` if the version is not registered yet.
        """
        with _reachable(self._uri):
            number = self._version(line, tag)
            if number is None:
                raise Retryable(f"the registry has no version {tag} of {line}; the next reconciliation registers it")
            rest = f"\n\n… the file {CARD} of the run has the rest"
            text = card if len(card) <= _DESCRIPTION_LENGTH else card[:_DESCRIPTION_LENGTH] + rest
            run = self._client.update_model_version(line, number, description=text).run_id
            if run:
                self._client.log_text(run, card, CARD)

    def unalias(self, line: str, alias: str) -> None:
        """Remove an alias of the line. Does nothing if there is none."""
        with _reachable(self._uri):
            if alias in self.aliases(line):
                self._client.delete_registered_model_alias(line, alias)

    def aliases(self, line: str) -> dict[str, str]:
        """Return alias -> version tag. Returns an empty dictionary for an unknown line."""
        stored = stored_aliases(self._uri, line)
        if stored is not None:
            return stored
        from mlflow.exceptions import MlflowException

        with _reachable(self._uri):
            try:
                pointers = self._client.get_registered_model(line).aliases
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return {}
                raise
            return {alias: str(self._client.get_model_version(line, number).tags.get(_TAG)) for alias, number in pointers.items()}

    def _model(self, line: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(line, tags={"ratchet": "line"})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _version(self, line: str, tag: str) -> str | None:
        """Return the MLflow version number with this tag, or None. This lookup makes `register` idempotent."""
        versions = self._client.search_model_versions(f"name = '{line}'", max_results=10_000)
        return next((str(v.version) for v in versions if v.tags.get(_TAG) == tag), None)

    def _run(self, version: ModelVersion, metrics: Mapping[str, float], steps: Sequence[StepFigures]) -> str:
        """Return the id of the run that holds the metrics of the version, and create the run if necessary."""
        experiment = self._client.get_experiment_by_name(f"ratchet/{version.line}")
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(f"ratchet/{version.line}", artifact_location=(self._folder / "runs").absolute().as_uri())
        )
        runs = self._client.search_runs([number], f"tags.`{_TAG}` = '{version.tag}'", max_results=1)
        run = runs[0] if runs else self._client.create_run(number, tags={_TAG: version.tag}, run_name=version.tag)
        for name, value in metrics.items():
            self._log(str(run.info.run_id), metric_name(name), float(value))
        self._log_steps(str(run.info.run_id), steps)
        with contextlib.suppress(Exception):
            self._client.set_terminated(run.info.run_id)
        return str(run.info.run_id)

    def _log(self, run: str, name: str, value: float) -> None:
        """Log a metric. A metric that MLflow rejects is skipped, so that it does not prevent the registration of the version."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_metric(run, name, value)
        except MlflowException as error:
            if error.error_code != _INVALID:
                raise
            log.warning("the registry rejected the metric %s: %s", name, str(error).splitlines()[0])

    def _log_steps(self, run: str, steps: Sequence[StepFigures]) -> None:
        """Log the training curves in batches. Each point has its measurement time as timestamp, so that a repetition adds no points."""
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        points = [
            Metric(f"train/{metric_name(name)}", value, int(step.at * 1000), step.step)
            for step in steps
            for name, value in step.figures.items()
        ]
        for at in range(0, len(points), _BATCH):
            try:
                self._client.log_batch(run, metrics=points[at : at + _BATCH])
            except MlflowException as error:
                if error.error_code != _INVALID:
                    raise
                log.warning("the registry rejected %d points of training curves: %s", len(points), str(error).splitlines()[0])


@lru_cache(maxsize=4)
def _open_client(uri: str) -> Any:
    """Return the client of a tracking URI, which all lines share."""
    disable_telemetry(os.environ)  # MLflow decides when it is imported whether it sends statistics
    with hidden("pandas"):  # MLflow loads it only for data frames, which nobody asks for here
        import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table that it creates
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def stored_aliases(uri: str, line: str) -> dict[str, str] | None:
    """Return alias -> version tag from MLflow's SQLite file; None if there is no such file or no such line, or if it cannot be read so.

    The service looks at the aliases of every line again and again. MLflow itself takes more than 100 MB of memory, so it is not imported
    for a look.
    """
    path = uri.removeprefix("sqlite:///")
    if path == uri or not Path(path).is_file():
        return None
    query = (
        "SELECT a.alias, t.value FROM registered_model_aliases a "
        "JOIN model_version_tags t ON t.name = a.name AND t.version = a.version AND t.key = ? WHERE a.name = ?"
    )
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=1)) as database:
            found = {str(alias): str(tag) for alias, tag in database.execute(query, (_TAG, line))}
    except sqlite3.Error:  # MLflow has other tables now, or writes at the moment
        return None
    return found or None


def metric_name(name: str) -> str:
    """Return `name` as a valid MLflow metric name.

    Valid names contain ASCII letters, digits, `_`, `-`, `.`, spaces and `/`. They form a relative path without empty parts or parts of
    dots, and have a limited length.
    """
    plain = re.sub(r"[^A-Za-z0-9_\-. /]", "_", name.replace(":", "/"))
    parts = [part for part in plain.split("/") if part.strip(".")]
    return "/".join(parts)[:_NAME_LENGTH].rstrip("/") or "_"


@contextmanager
def _reachable(uri: str) -> Iterator[None]:
    """Convert MLflow and OS errors: `Permanent` if the registry rejects a value as invalid, otherwise `Retryable`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        where = uri.split("@")[-1]
        if getattr(error, "error_code", None) == _INVALID:
            raise Permanent(f"the registry at {where} rejected the request as invalid: {str(error).splitlines()[0]}") from error
        raise Retryable(f"the registry at {where} is unavailable: {str(error).splitlines()[0]}; try again later") from error
