"""Environment variables of the service. Those of jobs are in `runtime/jobs/job_protocol.py`."""

from __future__ import annotations

from typing import Final

HOME: Final = "RATCHET_HOME"
"""Folder with all state of the installation. Default: `./.ratchet`. The operator sets it; the service passes it on to its processes."""
LEDGER_URL: Final = "RATCHET_LEDGER_URL"
"""SQLAlchemy URL of the ledger, for example of a Postgres database. Default: a SQLite file in the home folder."""
WAREHOUSE: Final = "RATCHET_WAREHOUSE"
"""`s3://BUCKET/PREFIX` of the files of the lakes, together with `RATCHET_CATALOG_URL`. Default: in the home folder. Each installation
has its own."""
CATALOG_URL: Final = "RATCHET_CATALOG_URL"
"""SQLAlchemy URL of the Postgres database with the catalog of the lakes, or the https URL of a REST catalog of Iceberg.
Default: a SQLite file of each lake in the home folder."""
ANCHORS: Final = "RATCHET_ANCHORS"
"""Folder, or `s3://BUCKET/PREFIX`, of the signed exports of the ledger's heads. Default: `anchors` in the home folder."""
ANCHOR_KEY: Final = "RATCHET_ANCHOR_KEY"
"""File with the Ed25519 key that signs these exports. Default: `anchor.key` in the home folder."""
KEYS: Final = "RATCHET_KEYS"
"""Folder with the keys of an installation in pods, a mounted Secret: `user-keys.json`, and for each line a folder with `router` and
`span-keys.json`. The operator sets it together with `RATCHET_EXCHANGE`."""
STANDBY: Final = "RATCHET_STANDBY"
"""`true` in each pod of a service that has several: one leads, and the others wait to take its place. What is below `RATCHET_HOME` is then
a cache, which a pod empties when it starts. The operator sets it."""
POD: Final = "RATCHET_POD"
"""Identity of the service's pod, which a restart of its container does not change: the uid of the pod. The operator sets it together with
`RATCHET_STANDBY`."""
RECEIVER_URL: Final = "RATCHET_RECEIVER_URL"
"""Address at which senders reach the receivers of a cluster, for messages: one for all lines, or `LINE=URL` for each line, separated by
spaces."""
PREFECT_OPEN: Final = "RATCHET_PREFECT_OPEN"
"""`accept` lets the service use an external Prefect server that answers without credentials. The operator sets it."""
PREFECT_OWN: Final = "RATCHET_PREFECT_OWN"
"""Marks a `PREFECT_API_URL` that Ratchet has set, as opposed to one that the user has set."""
