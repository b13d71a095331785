"""Makes the model card of a version from the ledger and the stored model folder."""

from __future__ import annotations

import json

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.model_card import UNKNOWN, base_licence, model_card


def card_of(artifacts: Artifacts, version: ModelVersion, cycle: CycleView | None, line: LineView) -> str:
    """Return the model card of a version. The licence is the one that was accepted at the adoption, or that of the stored folder."""
    licence = line.source.licence if line.source else licence_of(artifacts, line.base)
    return model_card(version, cycle, line, licence)


def licence_of(artifacts: Artifacts, base: ModelVersion | None) -> str:
    """Return the licence that the folder of the adopted model states, or `unknown`."""
    try:
        files = json.loads(artifacts.get(base.model.files))["files"] if base is not None else {}
        return base_licence(files, artifacts.get)
    except (RatchetError, ValueError, LookupError, TypeError):
        return UNKNOWN
