"""Both forms of the run channel pass one contract: a directory, and an object store reached by presigned HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_llmsched.agent.http_link import HttpLink
from airflow_llmsched.agent.link import DirectoryLink, Link
from airflow_llmsched.domain.identity import NodeId
from airflow_llmsched.objects.local import LocalStore
from airflow_llmsched.objects.remote import RemoteStore
from airflow_llmsched.ports import ObjectStore, Presigner, RunChannel
from airflow_llmsched.telemetry.channel import DirectoryChannel
from airflow_llmsched.telemetry.http_channel import GrantTerms, ObjectChannel
from airflow_llmsched.testing.channel_contract import ChannelHarness, RunChannelContract
from tests.support import seaweed
from tests.support.signed_store import SignedStore


class DirectoryHarness(ChannelHarness):
    def __init__(self, root: Path) -> None:
        self.root = root

    def control(self) -> RunChannel:
        return DirectoryChannel(str(self.root))

    def link(self, node: NodeId) -> Link:
        return DirectoryLink(str(self.root), node=node)


class HttpHarness(ChannelHarness):
    """A small grant, so that the contract's tests need several."""

    def __init__(self, store: ObjectStore, presigner: Presigner, links: Path) -> None:
        self.store = store
        self.presigner = presigner
        self.links = links
        self.opened: list[HttpLink] = []

    def control(self) -> RunChannel:
        terms = GrantTerms(num_urls=80)
        return ObjectChannel(self.store, "runs/x/channel/a 1", presigner=self.presigner, links=self.links, terms=terms)

    def link(self, node: NodeId) -> Link:
        self.opened.append(HttpLink(self.links / f"{node}.json", node=node, flush_interval_s=0.001, lease_s=0.6))
        return self.opened[-1]

    def close(self) -> None:
        for link in self.opened:
            link.close({"seq": 0}, limit_s=0.0)


class TestDirectory(RunChannelContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ChannelHarness:
        return DirectoryHarness(tmp_path / "channel")


class TestMemory(RunChannelContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[ChannelHarness]:
        store = RemoteStore("memory://")
        with SignedStore(store) as signed, closing(HttpHarness(store, signed, tmp_path / "links")) as harness:
            yield harness


class TestFolder(RunChannelContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[ChannelHarness]:
        store = LocalStore(str(tmp_path / "store"))
        with SignedStore(store) as signed, closing(HttpHarness(store, signed, tmp_path / "links")) as harness:
            yield harness


@pytest.fixture(scope="module")
def s3_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweed.seaweed_server(tmp_path_factory.mktemp("seaweed")) as address:
        yield address


class TestS3(RunChannelContract):
    @pytest.fixture
    def harness(self, tmp_path: Path, s3_address: str) -> Iterator[ChannelHarness]:
        store = RemoteStore(
            f"s3://{seaweed.BUCKET}/{uuid.uuid4()}",
            config=seaweed.config(s3_address),
            client_options={"allow_http": True},
        )
        with closing(HttpHarness(store, store, tmp_path / "links")) as harness:
            yield harness
