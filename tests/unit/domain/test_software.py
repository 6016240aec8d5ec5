from __future__ import annotations

from airflow_llmsched.domain.software import Software


def test_a_trainer_left_alone_has_fused_attention_and_overlaps_only_its_gradients():
    plain = Software()
    assert plain.fused_attention
    assert plain.overlaps_data_parallel
    assert not any([plain.fused_elementwise, plain.recorded_launches, plain.overlaps_tensor_parallel])
