"""A catalog that speaks the REST protocol of Iceberg, with the files of the tables in a bucket.

Source: the OpenAPI definition of the REST catalog in Apache Iceberg. pyiceberg is the client; this module reads the URL, bounds the time of
a request, and opens one client per process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from ratchet.contracts.errors import ConfigError
from ratchet.runtime.bucket import CONNECT, READ

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog

SCHEMES = ("https://", "http://")
_OPTIONS = ("warehouse", "scope", "audience", "resource", "oauth2-server-uri")
"""Options of the URL that become properties of the catalog. `warehouse` is the name by which the catalog knows its storage."""


def is_rest(url: str) -> bool:
    """Return whether the URL of a catalog is that of a REST catalog."""
    return url.startswith(SCHEMES)


def rest_properties(url: str) -> dict[str, str]:
    """Return the properties of pyiceberg's client for `https://[CLIENT:SECRET@]HOST/PATH[?warehouse=NAME]`.

    A token without a client is `https://:TOKEN@HOST/PATH`. Raises ConfigError for an unknown option; the message has no secret.
    """
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    if unknown := sorted(given.keys() - set(_OPTIONS)):
        raise ConfigError(f"RATCHET_CATALOG_URL has the unknown option {unknown[0]!r}; a REST catalog has {', '.join(_OPTIONS)}")
    if not parts.hostname:
        raise ConfigError("RATCHET_CATALOG_URL names no host; use https://CLIENT:SECRET@HOST/PATH?warehouse=NAME")
    host = parts.netloc.rpartition("@")[2]
    found = {"uri": urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), **given}
    if parts.username:
        found["credential"] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    elif parts.password:
        found["token"] = unquote(parts.password)
    return found


def shown_rest(url: str) -> str:
    """Return the URL without its secret and options, for messages."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


@lru_cache(maxsize=4)
def rest_catalog(url: str, name: str, storage: tuple[tuple[str, str], ...] = ()) -> RestCatalog:
    """Open the REST catalog at a URL. `storage` has further properties, for the files of the tables.

    Raises what pyiceberg raises if the catalog does not answer or refuses the credentials.
    """
    from pyiceberg.catalog.rest import RestCatalog
    from requests.adapters import HTTPAdapter

    class Bounded(HTTPAdapter):
        """Gives up on a catalog that does not answer; pyiceberg would wait without an end."""

        def send(self, *request: Any, **options: Any) -> Any:
            return super().send(*request, **{**options, "timeout": options.get("timeout") or (CONNECT, READ)})

    class Catalog(RestCatalog):  # type: ignore[misc]
        def _config_headers(self, session: Any) -> None:  # the first thing that is done with a new session
            super()._config_headers(session)
            for scheme in SCHEMES:
                session.mount(scheme, Bounded())

    return Catalog(name, **rest_properties(url), **dict(storage))


def rest_tables(url: str, name: str, namespace: str) -> dict[str, str]:
    """Return the location of the current metadata file of each table of a namespace; none if there is no such namespace."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    catalog = rest_catalog(url, name)
    found = {}
    try:
        listed = catalog.list_tables(namespace)
    except NoSuchNamespaceError:
        return {}
    for identifier in listed:
        try:
            found[str(identifier[-1])] = str(catalog.load_table(identifier).metadata_location)
        except NoSuchTableError:  # dropped meanwhile
            continue
    return found
