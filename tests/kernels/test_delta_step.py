"""The decoding kernel of linear attention, in Triton's interpreter, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.model.delta import decoding_step, register_delta_rule


@pytest.mark.parametrize(("width", "wide"), [(16, 32), (32, 64)])
def test_steps_move_the_state_as_the_reference_does(width: int, wide: int) -> None:
    register_delta_rule()
    reference: Any = modeling_qwen3_5.torch_recurrent_gated_delta_rule
    torch.manual_seed(0)
    states = torch.randn(2, 3, width, wide)
    expected_state = states.clone()
    for _ in range(3):
        query, key = (torch.randn(2, 1, 3, width) for _ in range(2))
        value = torch.randn(2, 1, 3, wide)
        g, beta = -torch.randn(2, 1, 3).abs(), torch.randn(2, 1, 3).sigmoid()
        expected, expected_state = reference.reference(
            query,
            key,
            value,
            g=g,
            beta=beta,
            initial_state=expected_state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        found = decoding_step(query, key, value, g, beta, states)
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.allclose(states, expected_state, rtol=1e-5, atol=1e-5)
