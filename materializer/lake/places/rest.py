"""A catalog that speaks the REST protocol of Iceberg, with the files of the tables in a bucket.

Source: the OpenAPI definition of the REST catalog in Apache Iceberg. pyiceberg is the client; this module reads the URL, bounds the time of
a request, and opens one client per process.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.runtime.bucket import CONNECT, READ

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog

SCHEMES = ("https://", "http://")
_NEAR = re.compile(r"localhost|127(\.\d+){3}|::1|[^.]+|.+\.svc(\.cluster\.local)?")
"""Hosts that may be reached without TLS: this machine, and Services of the cluster."""
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
    if given.keys() - set(_OPTIONS):
        raise ConfigError(f"RATCHET_CATALOG_URL has an unknown option; a REST catalog has {', '.join(_OPTIONS)}")
    _check(url)
    if "oauth2-server-uri" in given:
        _check(given["oauth2-server-uri"])
    host = parts.netloc.rpartition("@")[2]
    found = {"uri": urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), **given}
    if parts.username:
        found["credential"] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    elif parts.password:
        found["token"] = unquote(parts.password)
    return found


def _check(url: str) -> None:
    """Raise ConfigError for a URL that does not say plainly where the secret goes, or that would send it in clear to another network."""
    form = "use https://CLIENT:SECRET@HOST/PATH?warehouse=NAME, with %2F, %23 and %40 in place of /, # and @ in the secret"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(f"RATCHET_CATALOG_URL is no URL; {form}") from None
    if not host or parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(f"RATCHET_CATALOG_URL names no host, or has characters that a URL reads otherwise; {form}")
    if parts.scheme != "https" and not _NEAR.fullmatch(host):
        raise ConfigError("RATCHET_CATALOG_URL: http:// is for this machine and Services of the cluster only, because a secret is sent")


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
            reply = super().send(*request, **{**options, "timeout": options.get("timeout") or (CONNECT, READ)})
            if reply.is_redirect:  # requests would send the secret again, to any host
                raise OSError("the catalog redirects to another address; set RATCHET_CATALOG_URL to that one")
            return reply

    class Catalog(RestCatalog):  # type: ignore[misc]
        def _config_headers(self, session: Any) -> None:  # the first thing that is done with a new session
            super()._config_headers(session)
            for scheme in SCHEMES:
                session.mount(scheme, Bounded())

    try:
        return Catalog(name, **rest_properties(url), **dict(storage))
    except ValidationError:  # its text may quote a token
        raise OSError("the reply of the catalog, or of its token endpoint, has not the form of the REST protocol") from None


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
