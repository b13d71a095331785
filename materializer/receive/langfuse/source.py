"""Opens the source of the kind `langfuse`: the blob export if the source has a path, the public API if it has a base URL."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.loop import SourceSettings
from ratchet.materializer.dialects.exports.langfuse_export import USER_FEEDBACK, ScoreMeaning
from ratchet.materializer.receive.files.storage import open_storage
from ratchet.materializer.receive.langfuse.api import LangfuseApi
from ratchet.materializer.receive.langfuse.client import LangfuseClient
from ratchet.materializer.receive.langfuse.export import BlobExport


def open_langfuse(
    settings: SourceSettings,
    folder: Path,
    state: Path,
    scores: dict[str, ScoreMeaning] | None = None,
    base_url: str | None = None,
    public_key_env: str = "LANGFUSE_PUBLIC_KEY",
    secret_key_env: str = "LANGFUSE_SECRET_KEY",  # noqa: S107 -- the name of a variable
    since: datetime | None = None,
    page: int = 100,
) -> BlobExport | LangfuseApi:
    """Langfuse: the blob export below `path`, or the API at `base_url`.

    `scores` says which scores are ratings, and on which scale: name of the score -> meaning. The environment variables `public_key_env` and
    `secret_key_env` have the keys of the API. `since` is the start of the first read (default: 30 days ago), `page` the number of rows per
    request. Raises ConfigError if the settings do not fit each other.
    """
    what, meanings = f"source {settings.name!r}", USER_FEEDBACK if scores is None else scores
    if (settings.path is None) == (base_url is None):
        raise ConfigError(f"{what}: kind 'langfuse' needs either `path` (blob export) or options.base_url (API)")
    if base_url is None:
        return BlobExport(settings.name, open_storage(str(settings.path), folder, what), state, meanings)
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError(f"{what}: options.base_url must be the address of Langfuse, for example https://cloud.langfuse.com, without keys")
    if not 1 <= page <= 1000:
        raise ConfigError(f"{what}: options.page must be in 1 to 1000")
    first = since if since is None or since.tzinfo else since.replace(tzinfo=UTC)
    expand = [path.split(".")[1] for path in settings.mapping.values() if path.startswith("metadata.")]

    def connect() -> LangfuseClient:
        pair = os.environ.get(public_key_env), os.environ.get(secret_key_env)
        if not pair[0] or not pair[1]:
            raise ConfigError(f"{what}: set the environment variables {public_key_env} and {secret_key_env} to the keys of the project")
        return LangfuseClient(base_url, (pair[0], pair[1]), page)

    return LangfuseApi(settings.name, connect, state, meanings, first, expand)
