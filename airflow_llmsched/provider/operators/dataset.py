"""Stages the training data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmsched.provider.operators.base import RunOperator, failing_for_good, now_s

if TYPE_CHECKING:
    from airflow.sdk import Context


class StageDatasetOperator(RunOperator):
    """Bring the spec's data to the state root in checksummed shards, or find it there complete and verify it."""

    ui_color = "#eef7ee"

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the manifest's path, its digest and the token counts."""
        from airflow_llmsched.domain.checkpoint import VerifyDepth
        from airflow_llmsched.domain.ledger import Bucket
        from airflow_llmsched.provider import run_files
        from airflow_llmsched.provider.run_spans import measured
        from airflow_llmsched.staging.shards import stage
        from airflow_llmsched.staging.verify import verify

        started_s = now_s()
        scope = self.scope(context)
        spec = self.workload(scope)
        with failing_for_good(), measured(scope, Bucket.STAGE, label=self.task_id, task_started_s=started_s):
            root = run_files.dataset_directory(scope, spec)
            manifest = stage(spec.data, destination=str(root))
            verify(manifest, root=str(root), depth=VerifyDepth.CONTENT)
            run_files.write(scope, run_files.DATASET_FILE, manifest)
        self.log.info("%d training tokens in %d shards at %s", manifest.num_train_tokens, len(manifest.train), root)
        return {
            "manifest": str(root / "manifest.json"),
            "digest": manifest.digest,
            "num_train_tokens": manifest.num_train_tokens,
            "num_held_out_tokens": manifest.num_held_out_tokens,
        }
