"""Under whose law a cloud's region lies. Pure; a table, by the region's name.

Codes are ISO 3166 alpha-2, and EU for its members. Sources: the region lists of AWS, Google Cloud and Azure, read
2026-11. What is not known has no jurisdiction, and a wish for one then leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping

_BY_PREFIX: Mapping[str, Mapping[str, str]] = {
    "aws": {
        "us-": "US",
        "ca-": "CA",
        "mx-": "MX",
        "sa-east-1": "BR",
        "eu-": "EU",
        "eu-west-2": "GB",
        "eu-central-2": "CH",
        "af-south-1": "ZA",
        "me-south-1": "BH",
        "me-central-1": "AE",
        "il-central-1": "IL",
        "ap-east-1": "HK",
        "ap-east-2": "TW",
        "ap-northeast-1": "JP",
        "ap-northeast-2": "KR",
        "ap-northeast-3": "JP",
        "ap-south-": "IN",
        "ap-southeast-1": "SG",
        "ap-southeast-2": "AU",
        "ap-southeast-3": "ID",
        "ap-southeast-4": "AU",
        "ap-southeast-5": "MY",
        "ap-southeast-6": "NZ",
        "ap-southeast-7": "TH",
        "cn-": "CN",
    },
    "gcp": {
        "us-": "US",
        "northamerica-northeast": "CA",
        "northamerica-south1": "MX",
        "southamerica-east1": "BR",
        "southamerica-west1": "CL",
        "europe-": "EU",
        "europe-west2": "GB",
        "europe-west6": "CH",
        "africa-south1": "ZA",
        "me-west1": "IL",
        "me-central1": "QA",
        "me-central2": "SA",
        "asia-east1": "TW",
        "asia-east2": "HK",
        "asia-northeast1": "JP",
        "asia-northeast2": "JP",
        "asia-northeast3": "KR",
        "asia-south": "IN",
        "asia-southeast1": "SG",
        "asia-southeast2": "ID",
        "australia-": "AU",
    },
    "azure": {
        "eastus": "US",
        "westus": "US",
        "centralus": "US",
        "northcentralus": "US",
        "southcentralus": "US",
        "westcentralus": "US",
        "usgov": "US",
        "canada": "CA",
        "mexico": "MX",
        "brazil": "BR",
        "chile": "CL",
        "northeurope": "EU",
        "westeurope": "EU",
        "france": "EU",
        "germany": "EU",
        "italy": "EU",
        "poland": "EU",
        "spain": "EU",
        "sweden": "EU",
        "austria": "EU",
        "belgium": "EU",
        "denmark": "EU",
        "norway": "NO",
        "switzerland": "CH",
        "uk": "GB",
        "southafrica": "ZA",
        "israel": "IL",
        "qatar": "QA",
        "uae": "AE",
        "eastasia": "HK",
        "southeastasia": "SG",
        "japan": "JP",
        "korea": "KR",
        "centralindia": "IN",
        "southindia": "IN",
        "westindia": "IN",
        "jioindia": "IN",
        "indonesia": "ID",
        "malaysia": "MY",
        "australia": "AU",
        "newzealand": "NZ",
        "china": "CN",
    },
}


def jurisdiction_of(cloud: str, region: str) -> str:
    """Return the code for ``region``, by the longest prefix of its name that is known; empty where none is."""
    known = _BY_PREFIX.get(cloud, {})
    longest = max((prefix for prefix in known if region.startswith(prefix)), key=len, default=None)
    return "" if longest is None else known[longest]
