"""Checkpoints of ``torch.distributed.checkpoint`` in ``step-N`` directories: torchtitan's and our trainer's."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_llmsched.agent.seal import SEAL_NAME
from airflow_llmsched.checkpoints.dcp_directory import check_contents, manifest_digest, read_contents
from airflow_llmsched.checkpoints.dcp_metadata import METADATA_NAME
from airflow_llmsched.checkpoints.inspection import Inventory, check_seal, modified_at_s
from airflow_llmsched.checkpoints.scan import Torn, file_sizes, seal_of
from airflow_llmsched.checkpoints.step_format import StepFormat
from airflow_llmsched.domain.checkpoint import Compatibility, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout


class DcpFormat(StepFormat):
    """Complete when ``.metadata`` is there with every shard it names; a seal, where there is one, must agree."""

    name = "dcp"
    step_name = re.compile(r"step[-_]?([0-9]{1,18})")

    def take_stock(self, directory: Path, step: int, depth: VerifyDepth) -> Inventory:
        """Without a seal, sizes come from ``.metadata`` and content from the archives' own CRC-32."""
        names = file_sizes(directory)
        seal = seal_of(directory) if SEAL_NAME in names else None
        if seal is not None:
            sealed = {file.path for file in seal.files}
            if METADATA_NAME in names and METADATA_NAME not in sealed:
                raise Torn(f"{SEAL_NAME} does not list {METADATA_NAME}: it was sealed before its save had finished")
            check_seal(directory, seal, step=step, depth=depth)
            if depth is VerifyDepth.LISTING and METADATA_NAME in names:
                # The seal was written after the shards; reading every .metadata again would make a scan slow.
                return Inventory.of_seal(seal)
        contents = read_contents(directory, names)
        sizes = check_contents(directory, contents, depth=depth)
        if seal is not None:
            return Inventory.of_seal(seal)
        return Inventory(
            digest=manifest_digest(sizes, contents.metadata_digests),
            num_bytes=sum(sizes.values()),
            world_size=contents.world_size,
            saved_at_s=modified_at_s(directory, min(contents.metadata_digests)),
        )

    def compatibility(self, directory: Path, *, layout: ParallelLayout) -> Compatibility:
        """Any world size can load it, unless ranks kept metadata of their own or it is a model without optimizer."""
        contents = read_contents(directory, file_sizes(directory))
        if contents.only_model:
            return Compatibility(ok=False, reason="it holds a model only, neither optimizer nor progress")
        saved, wanted = contents.world_size, layout.world_size
        if saved is not None and saved != wanted:
            return Compatibility(
                ok=False,
                reason=f"saved by {saved} ranks that each read back only their own files; {wanted} are offered",
            )
        return Compatibility(ok=True, reason=f"reshards on load to {wanted} ranks" if saved is None else "same ranks")
