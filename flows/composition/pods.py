"""An installation whose parts run in pods: its exchange, the keys of its Secret, and the settings that it refuses."""

from __future__ import annotations

import os
from pathlib import Path

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import Loop
from ratchet.contracts.schema import parse
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.pod_keys import ANCHOR_KEY, ROUTER_TOKEN, USER_KEYS
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.runtime.bucket_artifacts import ARTIFACTS_URL
from ratchet.runtime.secrets.files import replace_secret
from ratchet.runtime.secrets.keyring import Keyring
from ratchet.runtime.secrets.span_signature import SPAN_KEYS
from ratchet.runtime.serving.exchange import EXCHANGE, Exchange, is_in_pods, open_exchange


def installation_exchange() -> Exchange:
    """Open the exchange of the installation. Raises ConfigError if RATCHET_EXCHANGE is missing or invalid."""
    return open_exchange(os.environ.get(EXCHANGE))


def refuse_local_parts(loop: Loop, home: Home) -> None:
    """Raise ConfigError if a line of an installation in pods keeps state, or serves, where other pods cannot reach it.

    Does nothing on one machine.
    """
    if not is_in_pods():
        return
    why = f"line {loop.line.name!r} runs in pods ({EXCHANGE} is set)"
    if home.ledger_url.startswith("sqlite"):
        raise ConfigError(
            f"{why}, but the ledger is a SQLite file on the disk of one pod; set {variables.LEDGER_URL} to the URL of a Postgres database"
        )
    if not home.lake(loop.line.name).is_shared:
        raise ConfigError(
            f"{why}, but the lake is on the disk of one pod; set {variables.WAREHOUSE} to s3://BUCKET/PREFIX, and {variables.CATALOG_URL} "
            "to the URL of a Postgres database for its catalog"
        )
    if loop.serving.router == "local":
        raise ConfigError(
            f'{why}, but serving.router = "local" is a process of one pod; set serving.router = "kubernetes" and serving.router_options.url'
        )
    if loop.serving.kind in ("embedded", "vllm"):
        raise ConfigError(f'{why}, but serving.kind = "{loop.serving.kind}" is a process of one pod; set serving.kind = "kubernetes"')
    if os.environ.get(variables.STANDBY) == "true":
        _refuse_state_of_one_pod(loop, home, why)
    if variables.KEYS not in os.environ:
        raise ConfigError(f"{why}, but {variables.KEYS} is not set: without the keys of the Secret, routers and service would not agree")


def _refuse_state_of_one_pod(loop: Loop, home: Home, why: str) -> None:
    """Raise ConfigError if state of the service would be in the home folder, which another pod does not see when it takes over."""
    why = f"{why}, and its service has several pods ({variables.STANDBY} is set)"
    for name, what in ((ARTIFACTS_URL, "the artifacts, s3://BUCKET/PREFIX"), ("MLFLOW_TRACKING_URI", "an MLflow server")):
        if not os.environ.get(name):
            raise ConfigError(f"{why}, but {name} is not set; set it to the URL of {what}")
    if not home.anchors.startswith("s3://"):
        raise ConfigError(
            f"{why}, but the exports of the ledger's heads would be in one of them; set {variables.ANCHORS} to s3://BUCKET/PREFIX"
        )
    if loop.cluster is not None and loop.cluster.volume.bucket is None:
        raise ConfigError(f"{why}, but its jobs use a shared volume; set [cluster.volume.bucket] in the loop file")
    if loop.cluster is None:
        raise ConfigError(f"{why}, but its jobs would run in one of them; add [cluster] to the loop file")


def adopt_keys(home: Home, line: str) -> None:
    """Use the keys of the folder RATCHET_KEYS for a line, in place of keys of its own. Does nothing where the variable is not set.

    Raises ConfigError if a file is missing or damaged, or if the keys of pseudonyms lack one that the home has: records that were stored
    with it could not be found any more. Raises Retryable if the home cannot be written.
    """
    given = os.environ.get(variables.KEYS)
    if not given:
        return
    folder = Path(given)
    users = _keys(folder / USER_KEYS)
    if home.user_keys.exists() and home.user_keys.read_bytes() != users:
        missing = {key.id: key for key in _parsed(home.user_keys).keys if key not in _parsed(folder / USER_KEYS).keys}
        if missing:
            raise ConfigError(
                f"{folder / USER_KEYS} lacks the keys {', '.join(map(str, missing))} of {home.user_keys}, with which pseudonyms were made; "
                "add them to the Secret, and keep them as long as the records"
            )
    if not home.user_keys.exists() or home.user_keys.read_bytes() != users:
        replace_secret(home.user_keys, users)
    _adopt_anchor_key(home, _keys(folder / ANCHOR_KEY))
    token = _keys(folder / line / ROUTER_TOKEN).decode().strip()
    if not token:
        raise ConfigError(f"{folder / line / ROUTER_TOKEN} is empty; create the Secret with `ratchet k8s keys`")
    _parsed(folder / line / SPAN_KEYS)
    open_credentials(home, line).adopt_router(token, _keys(folder / line / SPAN_KEYS))


def _adopt_anchor_key(home: Home, key: bytes) -> None:
    """Use the key for exports of the ledger's heads, unless the operator names another file."""
    if variables.ANCHOR_KEY in os.environ:
        return
    if not home.anchor_key.exists():
        replace_secret(home.anchor_key, key)
    elif home.anchor_key.read_bytes() != key:
        raise ConfigError(
            f"{home.anchor_key} differs from {ANCHOR_KEY} of the Secret, and its exports could not be verified any more; put its content "
            "into the Secret"
        )


def _keys(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} is not readable ({error.strerror}); create the Secret with `ratchet k8s keys`, and mount it") from error


def _parsed(path: Path) -> Keyring:
    try:
        found = parse(Keyring, _keys(path))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged; restore the Secret from a backup") from error
    if not found.keys:
        raise ConfigError(f"{path} has no key; restore the Secret from a backup")
    return found
