"""Takes a market snapshot."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_llmsched.clock import SystemClock
from airflow_llmsched.domain.capacity import Requirement, ShapeNeed
from airflow_llmsched.effect_points import EffectPoint
from airflow_llmsched.errors import CouldNotLookError, PartlySeenError, TransientError
from airflow_llmsched.objects.open import open_store
from airflow_llmsched.ports import ObjectStore
from airflow_llmsched.prices.snapshots import PREFIX, MarketSnapshot, encode_snapshot, snapshot_key
from airflow_llmsched.provider.clouds import open_cloud
from airflow_llmsched.provider.config import state_root

log = logging.getLogger(__name__)

_WRITE = EffectPoint("market.write")
_TIDY = EffectPoint("market.tidy")


def take_snapshot(clouds: Mapping[str, Mapping[str, Any]], shapes: Sequence[str], *, keep: int) -> dict[str, Any]:
    """Write what the clouds offer now, and delete all but the newest ``keep`` snapshots.

    A cloud, or a region of one, that cannot be asked is counted while another can be. Raises ``CouldNotLookError`` when
    none could be asked, ``StoreError``, ``SpecError``.
    """
    now_s = SystemClock().now_s()
    need = Requirement(by_shape={shape: ShapeNeed(num_nodes=1, work_s=0.0) for shape in shapes})
    rejections: Counter[str] = Counter()
    offers = []
    failures = []
    for name, options in clouds.items():
        try:
            offered = open_cloud(name, options).offers(need)
        except PartlySeenError as error:
            offered = error.seen
            rejections[f"of a part of {name} ({error})"] += 1
        except TransientError as error:
            failures.append(f"{name}: {error}")
            continue
        priced = [offer for offer in offered if math.isfinite(offer.usd_per_hour)]
        rejections["without a price"] += len(offered) - len(priced)
        sold = [offer for offer in priced if offer.usd_per_hour > 0]
        rejections["that cost nothing, which whoever has them says itself"] += len(priced) - len(sold)
        offers += sold
    if len(failures) == len(clouds):
        raise CouldNotLookError(f"no cloud could be asked: {'; '.join(failures)}")
    rejections.update(f"of a whole cloud ({failure})" for failure in failures)
    store, key = open_store(state_root()), snapshot_key(now_s)
    data = encode_snapshot(MarketSnapshot(taken_at_s=now_s, offers=tuple(offers)))
    with _WRITE:
        store.put(key, data)
    _tidy(store, keep=max(1, keep))
    return {"uri": f"{store.uri}/{key}", "num_offers": len(offers), "rejections": dict(+rejections)}


def _tidy(store: ObjectStore, *, keep: int) -> None:
    keys = sorted(info.key for info in store.list(PREFIX) if info.key.startswith(f"{PREFIX}snapshot-"))
    for key in keys[:-keep]:
        with _TIDY:
            store.delete(key)
