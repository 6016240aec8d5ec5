"""The AWS adapter, moto behind the proxy, and a virtual clock, as the contract's harness sees them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import boto3
from moto.ec2.models import ec2_backends
from moto.sqs.models import sqs_backends

from airflow_llmsched.clouds.aws.cloud import AwsCloud
from airflow_llmsched.clouds.aws.render import Rental
from airflow_llmsched.clouds.aws.tags import LeaseTags
from airflow_llmsched.domain.capacity import Offer, Pool
from airflow_llmsched.domain.identity import LeaseKey, NodeId, RunOrigin
from airflow_llmsched.domain.lease import NodeNotice, NoticeKind
from airflow_llmsched.domain.workload import CapacityType
from airflow_llmsched.sim.clock import VirtualClock
from tests.support.aws_proxy import ACCOUNT, aws_server
from tests.support.planned_cloud import PlannedCloudHarness

REGION, FAR_REGION = "us-east-1", "us-west-2"
SHAPE = "p4d.24xlarge"
QUEUE = "llmsched-notices"

session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="S3CR3T-KEY", region_name=REGION)


def aws_offer(
    zone: str = "us-east-1a", *, capacity_type: CapacityType = CapacityType.ON_DEMAND, shape: str = SHAPE
) -> Offer:
    pool = Pool(cloud="aws", region=zone[:-1], zone=zone, shape=shape, capacity_type=capacity_type)
    return Offer(pool=pool, usd_per_hour=32.77, priced_at_s=1_750_000_000.0, source="test")


class AwsCloudHarness(PlannedCloudHarness):
    """Its server is this process's only one: a new harness empties the account of the one before."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.proxy, self.address = aws_server()
        self.proxy.reset(now_s=self.clock.now_s)
        self.plan = self.proxy.plan  # which the reset has made anew
        self.sqs = self.client("sqs")
        self.queue_url = self.sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
        self._options = {
            "regions": [REGION],
            "image": "ami-0123456789abcdef0",
            "notice_queue_url": self.queue_url,
            "endpoint_url": self.address,
            **options,
        }
        self.cloud: AwsCloud = self.reopen()

    def close(self) -> None:
        """Fail when the stand-in itself went wrong: the adapter takes that for a bad day of EC2's."""
        assert self.proxy.world.crashes == []

    @property
    def backend(self) -> Any:
        """moto's own state: what sends the bill."""
        return ec2_backends[ACCOUNT][REGION]

    def client(self, service: str) -> Any:
        return session.client(service, region_name=REGION, endpoint_url=self.address)

    def reopen(self) -> AwsCloud:
        return AwsCloud(credentials=session, clock=self.clock, **self._options)

    def offer(self) -> Offer:
        return aws_offer("us-east-1a")

    def spot_offer(self) -> Offer:
        return aws_offer("us-east-1b", capacity_type=CapacityType.SPOT)

    def far_offer(self) -> Offer:
        return aws_offer(f"{FAR_REGION}a")

    def silence(self, *, is_silent: bool) -> None:
        self.proxy.world.dark_regions = {FAR_REGION} if is_silent else set()

    def billed(self) -> frozenset[str]:
        return frozenset(each for region in self._options["regions"] for each in _billed(ec2_backends[ACCOUNT][region]))

    def run_short(self, offer: Offer, *, num_nodes: int) -> None:
        pool = offer.pool
        is_spot = pool.capacity_type is CapacityType.SPOT
        self.proxy.world.free[(pool.shape, pool.zone, is_spot)] = num_nodes

    def limit_quota(self, offer: Offer, *, num_nodes: int) -> None:
        self.proxy.world.quota[offer.pool.region] = num_nodes

    def hide_new(self) -> None:
        self.proxy.world.hide_for_s = self.cloud.consistency_s

    def preempt(self, node: NodeId) -> None:
        self.proxy.preempt(REGION, str(node))

    def speak(self, node: NodeId, word: str) -> None:
        self.backend.get_instance(str(node))._state.name = word

    def rental(self, offer: Offer, *, key: LeaseKey, origin: RunOrigin, num_nodes: int, until_s: float) -> Rental:
        """Return what the adapter's calls would be made of."""
        said = LeaseTags(
            key=key,
            origin=origin,
            pool=offer.pool,
            num_nodes=num_nodes,
            created_at_s=self.now_s(),
            expires_at_s=until_s,
        )
        return self.cloud._rental(said)

    def notify(self, node: NodeId, notice: NodeNotice) -> None:
        words, announced_at_s = "EC2 Instance Rebalance Recommendation", self.now_s()
        if notice.kind is NoticeKind.INTERRUPTION:
            assert notice.effective_at_s is not None
            words, announced_at_s = "EC2 Spot Instance Interruption Warning", notice.effective_at_s - 120.0
        self.announce(str(node), words, announced_at_s)

    def announce(self, instance_id: str, words: str, at_s: float) -> None:
        """Have EventBridge put an event into the queue."""
        self.sqs.send_message(QueueUrl=self.queue_url, MessageBody=self.event(instance_id, words, at_s))

    def event(self, instance_id: str, words: str, at_s: float) -> str:
        """Return an event as EventBridge writes it."""
        event = {
            "version": "0",
            "detail-type": words,
            "source": "aws.ec2",
            "account": ACCOUNT,
            "time": datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": REGION,
            "detail": {"instance-id": instance_id, "instance-action": "terminate"},
        }
        return json.dumps(event)


def _billed(backend: Any) -> list[str]:
    instances = [
        instance.id
        for reservation in backend.reservations.values()
        for instance in reservation.instances
        if instance._state.name not in ("terminated", "shutting-down")
    ]
    requests = [each.id for each in backend.spot_instance_requests.values() if each.state in ("open", "active")]
    return [*instances, *requests, *backend.volumes]


class LitteredAwsHarness(AwsCloudHarness):
    """Each fleet leaves a disk and an interface that hang on nothing, and the queue has a hint about it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.proxy.world.on_launch = self._litter

    def _litter(self, _region: str, instance_ids: list[str]) -> None:
        tags = {tag["key"]: tag["value"] for tag in self.backend.get_instance(instance_ids[0]).get_tags()}
        volume = self.backend.create_volume(size=100, zone_name="us-east-1a", snapshot_id=None)
        subnet = next(iter(self.backend.subnets["us-east-1a"].values()))
        interface = self.backend.create_network_interface(subnet, private_ip_address=None)
        for each in (volume, interface):
            self.backend.create_tags([each.id], tags)
        hint = self.event(instance_ids[0], "EC2 Instance Rebalance Recommendation", self.now_s())
        sqs_backends[ACCOUNT][REGION].send_message(QUEUE, hint)
