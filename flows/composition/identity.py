"""The id of an installation."""

from __future__ import annotations

import uuid
from functools import lru_cache

from ratchet.contracts.errors import ConfigError
from ratchet.flows.composition.pods import installation_exchange
from ratchet.flows.config.home import Home
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.serving.exchange import EXCHANGE, is_in_pods


def installation_id(home: Home) -> str:
    """Return the id that distinguishes this installation from others on the same Prefect server. Created at first use.

    In pods, the exchange has it, because a pod may begin with an empty home. Raises Retryable if the exchange cannot be reached, and
    ConfigError if it is that of another installation.
    """
    path = home.prefect / "installation"
    known = path.read_text() if path.exists() else None
    if is_in_pods():
        shared = _shared_id(known or uuid.uuid4().hex[:12], str(path))
        if known is None:
            write_atomic(path, shared.encode())
        elif known != shared:
            raise ConfigError(
                f"the exchange belongs to the installation {shared}, and this home to {known}; give each installation a prefix of its "
                f"own in {EXCHANGE}. If the exchange is the right one, delete {path}"
            )
        return shared
    if known is None:
        write_atomic(path, uuid.uuid4().hex[:12].encode())
    return path.read_text()


@lru_cache(maxsize=8)
def _shared_id(proposed: str, path: str) -> str:  # noqa: ARG001 -- each home asks once
    return installation_exchange().installation(proposed)
