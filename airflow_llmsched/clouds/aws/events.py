"""Reads the SQS queue that EventBridge feeds, and keeps what it announces in the tags of the instances it is about.

A message is deleted only after its tag has been written: whichever process reads it, all others see it from then on,
and one that dies in between leaves the message to the next.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from airflow_llmsched.clouds.aws import states, tags
from airflow_llmsched.clouds.aws.client import AwsClient, AwsError
from airflow_llmsched.clouds.aws.notices import Announcement, announcement
from airflow_llmsched.clouds.aws.options import AwsOptions
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError

log = logging.getLogger(__name__)

_TAG = EffectPoint("aws.notice.tag")
_DELETE = EffectPoint("aws.notice.delete")

MAX_MESSAGES = 10
"""SQS's limit for one call."""
MAX_ROUNDS = 10
"""Calls for messages in one go: what is left waits for the next look."""
_HOST = re.compile(r"https?://(?:sqs\.)?(?P<region>[a-z]{2,}(?:-[a-z]+)+-\d+)\.")


def keep(client: AwsClient, options: AwsOptions) -> None:
    """Move what the queue announces to the instances' tags. Without a queue, does nothing.

    Announcements are hints: a queue that can not be read is said in the log, and ends no look at a lease.
    """
    url = options.notice_queue_url
    if not url:
        return
    region = queue_region(url, default=options.regions[0])
    try:
        for _ in range(MAX_ROUNDS):
            messages = client.look(
                "receive_message", region=region, service="sqs", QueueUrl=url, MaxNumberOfMessages=MAX_MESSAGES
            ).get("Messages", [])
            if not messages:
                return
            done = _kept(client, messages, consistency_s=options.consistency_s)
            if done:
                _delete(client, region, url, done)
    except (CouldNotLookError, AwsError) as error:
        log.warning("announcements of %s could not be read, or kept: %s", url, error)


def queue_region(url: str, *, default: str) -> str:
    """Return the region in a queue's URL."""
    found = _HOST.match(url)
    return found["region"] if found is not None else default


def _kept(client: AwsClient, messages: Sequence[dict[str, Any]], *, consistency_s: float) -> list[str]:
    """Write tags, and return the receipts of messages that are done with.

    Those about instances of ours that are not listed yet, or whose region does not answer, are left: they come again
    after the queue's visibility limit.
    """
    done: list[str] = []
    waiting: dict[str, list[tuple[str, Announcement]]] = {}
    for message in messages:
        told = announcement(message["Body"])
        if told is None:
            done.append(message["ReceiptHandle"])
        else:
            waiting.setdefault(told.region, []).append((message["ReceiptHandle"], told))
    for region, told_there in waiting.items():
        try:
            ours = _ours(client, region, [told.instance_id for _, told in told_there])
            for receipt, told in told_there:
                if told.instance_id in ours:
                    _tag(client, told)
                elif client.clock.now_s() < told.announced_at_s + consistency_s:
                    continue
                done.append(receipt)
        except (CouldNotLookError, AwsError) as error:  # which keeps no announcement of another region
            log.warning("announcements about instances in %s could not be kept: %s", region, error)
    return done


def _ours(client: AwsClient, region: str, instance_ids: Sequence[str]) -> set[str]:
    """Return those of the instances that belong to a lease and can still be tagged."""
    filters = [
        {"Name": "instance-id", "Values": sorted(set(instance_ids))},
        {"Name": "tag-key", "Values": [tags.LEASE]},
    ]
    reservations = client.rows("describe_instances", "Reservations", region=region, Filters=filters)
    return {
        row["InstanceId"]
        for each in reservations
        for row in each.get("Instances", ())
        if row["State"]["Name"] not in states.REMOVED
    }


@_TAG
def _tag(client: AwsClient, told: Announcement) -> None:
    name, value = told.tag
    client.call("create_tags", region=told.region, Resources=[told.instance_id], Tags=tags.pairs({name: value}))


@_DELETE
def _delete(client: AwsClient, region: str, url: str, receipts: Sequence[str]) -> None:
    entries = [{"Id": str(index), "ReceiptHandle": receipt} for index, receipt in enumerate(receipts)]
    client.call("delete_message_batch", region=region, service="sqs", QueueUrl=url, Entries=entries)
