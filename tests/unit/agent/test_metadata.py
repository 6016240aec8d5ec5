from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator

import pytest

from airflow_llmsched.agent import metadata
from airflow_llmsched.agent.metadata import Metadata, follow
from tests.support.metadata_service import NAME, MetadataService, azure_event
from tests.support.waiting import wait_until


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with MetadataService() as service:
        yield service


def look(service: MetadataService, cloud: str, *, times: int = 2) -> float | None:
    asked = Metadata(cloud, address=service.address)
    return [asked.taken_at_s(now_s=100.0) for _ in range(times)][-1]


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp"])
def test_a_machine_of_which_nothing_is_said_stays(service: MetadataService, cloud: str) -> None:
    assert look(service, cloud) is None


def test_aws_says_when_a_spot_machine_is_taken_to_whoever_has_a_token(service: MetadataService) -> None:
    service.aws = {"action": "terminate", "time": "2026-11-29T22:30:00Z"}
    assert look(service, "aws") == 1_795_991_400.0
    assert service.num_asked == 3  # without a token, for one, with it


def test_azure_says_it_of_this_machine_among_all_of_its_set(service: MetadataService) -> None:
    service.azure = [azure_event("Preempt", "ls-x_1", "ls-x_2")]
    assert look(service, "azure") is None
    late = azure_event("Terminate", NAME, not_before="Sun, 29 Nov 2026 23:30:00 GMT")
    service.azure += [late, azure_event("Preempt", "ls-x_1", NAME)]
    assert look(service, "azure") == 1_795_991_400.0
    service.azure = [azure_event("Preempt", NAME, not_before="")]  # it has begun
    assert look(service, "azure") == 100.0


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy"])
def test_azures_maintenance_takes_no_machine(service: MetadataService, kind: str) -> None:
    """Field case E21: a hint is no end."""
    service.azure = [azure_event(kind, NAME)]
    assert look(service, "azure") is None


def test_google_says_only_that_it_has_begun(service: MetadataService) -> None:
    service.gcp = "TRUE"
    assert look(service, "gcp") == 100.0 + metadata.GOOGLE_NOTICE_S


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp"])
@pytest.mark.parametrize("status", [302, 500, 503])
def test_a_service_in_trouble_says_nothing_and_leads_nowhere(service: MetadataService, cloud: str, status: int) -> None:
    service.status = status
    with pytest.raises(urllib.error.HTTPError):
        look(service, cloud)


def test_an_answer_that_is_not_understood_is_no_notice(service: MetadataService) -> None:
    service.aws = {"action": "terminate", "time": "soon"}
    with pytest.raises(ValueError, match="soon"):
        look(service, "aws")


def test_no_proxy_is_asked(service: MetadataService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert look(service, "gcp") is None


def test_a_cloud_that_is_not_known_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="aws, azure, gcp"):
        Metadata("ibm")


def test_a_notice_is_passed_on_once_whatever_came_before(
    service: MetadataService, capfd: pytest.CaptureFixture[str]
) -> None:
    noted: list[float] = []
    service.status = 503
    follow(Metadata("azure", address=service.address), noted.append, node="n0", interval_s=0.01)
    wait_until(lambda: service.num_asked > 3, 60)
    service.status = 200
    service.azure = [azure_event("Preempt", NAME)]
    wait_until(lambda: bool(noted), 60)
    wait_until(lambda: "llmsched-metadata" not in {each.name for each in threading.enumerate()}, 60)
    assert noted == [1_795_991_400.0]
    assert capfd.readouterr().err.count("metadata service: HTTP Error 503") == 1


def test_a_notice_that_could_not_be_noted_is_noted_later(service: MetadataService) -> None:
    tried: list[float] = []

    def note(taken_at_s: float) -> None:
        tried.append(taken_at_s)
        if len(tried) < 3:
            raise OSError("disk full")

    service.azure = [azure_event("Preempt", NAME)]
    follow(Metadata("azure", address=service.address), note, node="n0", interval_s=0.01)
    wait_until(lambda: "llmsched-metadata" not in {each.name for each in threading.enumerate()}, 60)
    assert tried == [1_795_991_400.0] * 3
