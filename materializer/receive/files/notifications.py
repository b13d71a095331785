"""Listens to notifications of a bucket in a queue of SQS. They only wake up a line: what there is to read, the listing of the bucket says.

A notification is deleted when it has arrived. If it is lost, or the queue does not answer, the line looks at the bucket at its next usual
time.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from urllib.parse import urlsplit

_WAIT = 20
"""Seconds that one request waits for notifications."""
_AGAIN = 30.0
"""Seconds after a failure until the queue is asked again."""
_FORGOTTEN = 120.0
"""Seconds without a question after which nobody listens any more, for example because the loop file names another queue."""
_LOG = logging.getLogger(__name__)


class QueueListener:
    """Listens to one queue in a thread, which begins with the first question and ends when nobody asks any more."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._arrived, self._stopped = threading.Event(), threading.Event()
        self._asked = time.monotonic()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def arrived(self) -> bool:
        """Return whether a notification has arrived since the last question. Does not wait."""
        with self._lock:
            self._asked = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._stopped.clear()
                self._thread = threading.Thread(target=self._listen, name="bucket notifications", daemon=True)
                self._thread.start()
        if not self._arrived.is_set():
            return False
        self._arrived.clear()
        return True

    def stop(self) -> None:
        """Stop to listen after the request that is under way."""
        self._stopped.set()

    def _listen(self) -> None:
        client, told = None, ""
        while not self._stopped.is_set() and time.monotonic() - self._asked < _FORGOTTEN:
            try:
                client = client or _client(self.url)
                found = client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10, WaitTimeSeconds=_WAIT).get("Messages", [])
                if found:
                    self._arrived.set()
                    entries = [{"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]} for number, one in enumerate(found)]
                    client.delete_message_batch(QueueUrl=self.url, Entries=entries)
            except Exception as error:  # whatever it is, the line still looks at the bucket by itself
                if type(error).__name__ != told:
                    told = type(error).__name__
                    _LOG.warning("the queue %s cannot be read, so new objects are found only every half minute: %s", self.url, error)
                self._stopped.wait(_AGAIN)


def _client(url: str) -> Any:
    from boto3.session import Session
    from botocore.config import Config

    host = (urlsplit(url).hostname or "").split(".")
    region = {"region_name": host[1]} if host[0] == "sqs" and len(host) > 2 else {}
    return Session().client("sqs", config=Config(connect_timeout=10, read_timeout=_WAIT + 10), **region)


_LISTENERS: dict[str, QueueListener] = {}
_LOCK = threading.Lock()


def listener(url: str) -> QueueListener:
    """Return the listener of a queue. A process has one per queue, because two would take each other's notifications."""
    with _LOCK:
        return _LISTENERS.setdefault(url, QueueListener(url))
