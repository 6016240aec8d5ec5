"""Lines of Google's price list, worded and shaped as it words and shapes them; amounts are made up."""

from __future__ import annotations

from typing import Any

REGION = "us-central1"
COMPUTE, TPUS = "services/6F81-5844-456A", "services/E000-3F24-B8AA"


def sku(
    description: str,
    group: str,
    nanos: int,
    *,
    units: int = 0,
    usage: str = "OnDemand",
    unit: str = "",
    regions: tuple[str, ...] = (REGION,),
    currency: str = "USD",
) -> dict[str, Any]:
    return {
        "name": f"{COMPUTE}/skus/{description[:12]}",
        "description": description,
        "category": {"resourceFamily": "Compute", "resourceGroup": group, "usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "pricingExpression": {
                    "usageUnit": unit or ("GiBy.h" if group == "RAM" else "h"),
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {"currencyCode": currency, "units": str(units), "nanos": nanos},
                        }
                    ],
                }
            }
        ],
    }


def a3_list() -> list[dict[str, Any]]:
    return [
        sku("A3 Instance Core running in Americas", "CPU", 30_000_000),
        sku("A3 Instance Ram running in Americas", "RAM", 3_000_000),
        sku("Nvidia H100 80GB GPU running in Americas", "GPU", 800_000_000, units=9),
        sku("Spot Preemptible A3 Instance Core running in Americas", "CPU", 10_000_000, usage="Preemptible"),
        sku("Spot Preemptible A3 Instance Ram running in Americas", "RAM", 1_000_000, usage="Preemptible"),
        sku(
            "Nvidia H100 80GB GPU attached to Spot Preemptible VMs running in Americas",
            "GPU",
            500_000_000,
            units=2,
            usage="Preemptible",
        ),
        sku("TpuV5e running in Americas", "TPU", 200_000_000, units=1),
        sku("Preemptible TpuV5e running in Americas", "TPU", 600_000_000),
    ]
