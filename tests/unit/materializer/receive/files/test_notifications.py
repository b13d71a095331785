"""Tests of the queue of a bucket, against a local server: a notification is told once, and a queue that fails stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from boto3.session import Session
from botocore.exceptions import NoRegionError
from pydantic import ValidationError

from ratchet.contracts.loop import SourceSettings
from ratchet.materializer.receive.files import notifications
from ratchet.materializer.receive.files.notifications import QueueListener, listener
from tests.s3 import S3, served_by_default
from tests.waiting import until


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    monkeypatch.setattr(notifications, "_WAIT", 1)
    with served_by_default(monkeypatch) as server:
        yield server


def queue_of(s3: S3) -> tuple[Any, str]:
    """A queue that gets the notifications of the test's bucket: (client, URL)."""
    client = Session().client("sqs", endpoint_url=s3.settings.endpoint, region_name="us-east-1")
    url = client.create_queue(QueueName=s3.bucket)["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    wanted = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    s3.client.put_bucket_notification_configuration(Bucket=s3.bucket, NotificationConfiguration=wanted)
    return client, url


@pytest.mark.slow
def test_a_new_object_is_told_once(s3: S3) -> None:
    client, url = queue_of(s3)
    client.purge_queue(QueueUrl=url)  # the test event of the configuration
    listening = QueueListener(url)
    assert not listening.arrived()
    s3.client.put_object(Bucket=s3.bucket, Key="logs/a.json", Body=b"{}")
    until(listening.arrived, 20)
    listening.stop()
    until(lambda: "Messages" not in client.receive_message(QueueUrl=url), 20)
    assert not listening._arrived.is_set()


def test_a_queue_that_fails_is_told_in_the_log_and_nothing_arrives(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def receive_message(self, **_: Any) -> Any:
            raise ConnectionError("refused")

    monkeypatch.setattr(notifications, "_client", lambda _url: Broken())
    listening = QueueListener("https://sqs.eu-west-1.amazonaws.com/1/q")
    assert not listening.arrived()
    until(lambda: "cannot be read" in caplog.text, 10)
    assert not listening.arrived()
    listening.stop()


def test_a_process_has_one_listener_for_a_queue() -> None:
    assert listener("https://a.example/q") is listener("https://a.example/q")


@pytest.mark.parametrize(
    ("path", "queue"), [("logs", "https://sqs.eu-west-1.amazonaws.com/1/q"), ("s3://b/logs", "arn:aws:sqs:eu-west-1:1:q")]
)
def test_a_queue_needs_a_place_on_s3_and_a_url(path: str, queue: str) -> None:
    with pytest.raises(ValidationError, match="queue"):
        SourceSettings(name="s", kind="jsonl", path=path, queue=queue)


def test_a_client_that_cannot_be_made_is_told_and_tried_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def failing(url: str) -> Any:
        tried.append(url)
        raise NoRegionError

    monkeypatch.setattr(notifications, "_client", failing)
    monkeypatch.setattr(notifications, "_AGAIN", 0.01)
    listening = QueueListener("http://queue.example/1/q")
    assert not listening.arrived()
    until(lambda: len(tried) > 2, 10)
    assert caplog.text.count("cannot be read") == 1
    assert listening._thread is not None
    assert listening._thread.is_alive()
    listening.stop()
