from __future__ import annotations

from airflow_llmsched.domain.dataset import DatasetManifest, Shard


def test_training_and_held_out_tokens_are_counted_apart_one_byte_one_token():
    shards = [Shard(path=f"{index}.bin", num_bytes=10**index, sha256="0" * 64) for index in range(3)]
    manifest = DatasetManifest(root="/d", train=tuple(shards[:2]), held_out=(shards[2],), source="stdlib", digest="1")
    assert (manifest.num_train_tokens, manifest.num_held_out_tokens) == (11, 100)
