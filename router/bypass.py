"""Configurations of proxies in front of a line: requests go to the router, and to the champion's model server while the router is down.

Requests that bypass the router leave no trace, and every session is answered by the champion.
"""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import urlsplit

from ratchet.router.requests import MAX_BODY


class Proxy(StrEnum):
    """A proxy for which a configuration can be written."""

    HAPROXY = "haproxy"
    NGINX = "nginx"


ANSWER_SECONDS = 900
"""Maximum seconds between two pieces of an answer. More than the largest `serving.router_options.deadline`."""

_HAPROXY = """\
defaults {name}
    mode http
    timeout connect 1s
    timeout client {answer}s
    timeout server {answer}s
    timeout check 2s
    retries 3
    option redispatch 1
    option http-buffer-request
    retry-on conn-failure empty-response

listen {name} from {name}
    bind {listen}
    option httpchk GET /health
    server router {router} check inter 1s fall 2 rise 2 observe layer4 error-limit 1 on-error mark-down
    server champion {champion} check inter 1s fall 2 backup
"""

_NGINX = """\
upstream {name} {{
    server {router} max_fails=1 fail_timeout=2s;
    server {champion} backup;
}}

server {{
    listen {listen};
    client_max_body_size {body};
    location / {{
        proxy_pass http://{name};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $host;
        proxy_buffering off;
        proxy_connect_timeout 1s;
        proxy_read_timeout {answer}s;
        proxy_next_upstream error;
    }}
}}
"""

_TEXTS = {Proxy.HAPROXY: _HAPROXY, Proxy.NGINX: _NGINX}


def proxy_config(proxy: Proxy, line: str, tag: str, listen: str, router: str, champion: str) -> str:
    """Return the configuration of a proxy for one line.

    `listen` is the address and port on which the proxy listens. `router` and `champion` are the base URLs of the router and of the model
    server of the version `tag`.
    """
    parts = {"name": f"ratchet-{line}", "listen": listen, "router": urlsplit(router).netloc, "champion": urlsplit(champion).netloc}
    body = _TEXTS[proxy].format(**parts, answer=ANSWER_SECONDS, body=MAX_BODY)
    return f"# Written by `ratchet proxy`. The champion of line {line} is {tag}.\n{body}"
