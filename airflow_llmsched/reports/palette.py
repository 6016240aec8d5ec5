"""Colours of buckets and attempts. Mid tones, so that they read on light and on dark."""

from __future__ import annotations

from airflow_llmsched.domain.ledger import Bucket

BUCKET_COLOUR: dict[Bucket, str] = {
    Bucket.USEFUL: "#2f9e6e",
    Bucket.SAVE: "#3f83d6",
    Bucket.INIT: "#8a79e0",
    Bucket.PROVISION: "#4fb0c6",
    Bucket.STAGE: "#2f7f8c",
    Bucket.QUEUE: "#9aa7b4",
    Bucket.RECOVER: "#e3a12f",
    Bucket.LOST: "#d64f4a",
    Bucket.EVALUATE: "#c073b4",
    Bucket.HANDOFF: "#b58a63",
    Bucket.UNCLASSIFIED: "#5d6874",
}
"""In the order in which buckets are listed and stacked."""

ATTEMPT_COLOURS = ("#3f83d6", "#e08a2e", "#8a79e0", "#2f9e6e", "#c073b4", "#4fb0c6")

BUCKET_MEANING: dict[Bucket, str] = {
    Bucket.USEFUL: "training steps that were kept",
    Bucket.SAVE: "training stood still to write a checkpoint",
    Bucket.INIT: "from the launch to the first step: imports, rendezvous, loading, warm-up",
    Bucket.PROVISION: "planning, acquiring, submitting and giving back",
    Bucket.STAGE: "moving and checking data",
    Bucket.QUEUE: "waiting for a task to start, or for capacity",
    Bucket.RECOVER: "from the end of a gang to the next launch",
    Bucket.LOST: "steps thrown away, stalls, ranks alive without progress",
    Bucket.EVALUATE: "held-out evaluation",
    Bucket.HANDOFF: "between a trigger and a worker, while no gang runs",
    Bucket.UNCLASSIFIED: "covered by no measurement",
}
