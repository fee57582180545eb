"""Linear attention in chunks at the shape of Qwen3.5-4B, against transformers' reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.model.delta import chunked_delta_rule, decoding_step, register_delta_rule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("length", [1, 64, 1053])
def test_values_and_gradients_are_those_of_the_reference(length: int) -> None:
    register_delta_rule()
    reference: Any = modeling_qwen3_5.torch_chunk_gated_delta_rule
    torch.manual_seed(0)
    wide = [torch.randn(2, length, 32, 128, device="cuda").bfloat16() for _ in range(3)]
    narrow = [torch.randn(2, length, 32, device="cuda") for _ in range(2)]
    state = torch.randn(2, 32, 128, 128, device="cuda")
    given = [*wide, -narrow[0].abs(), narrow[1].sigmoid(), state]
    found = []
    ours: Any = chunked_delta_rule
    for run in (reference.reference, ours):
        leaves = [x.detach().clone().requires_grad_() for x in given]
        query, key, value, g, beta, initial = leaves
        out, last = run(
            query,
            key,
            value,
            g=g,
            beta=beta,
            initial_state=initial,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        (out.float().sin().sum() + last.sin().sum()).backward()
        found.append([out.detach(), last.detach(), *(leaf.grad for leaf in leaves)])
    for expected, got in zip(*found, strict=True):
        assert expected is not None
        scale = float(expected.float().abs().max())
        assert torch.allclose(got.float(), expected.float(), rtol=0, atol=1e-2 * scale)
        error = (got.float() - expected.float()).norm() / expected.float().norm()
        assert float(error) < 1e-3


@torch.no_grad()
def test_a_decoding_step_is_that_of_the_reference() -> None:
    register_delta_rule()
    reference: Any = modeling_qwen3_5.torch_recurrent_gated_delta_rule
    torch.manual_seed(0)
    query, key, value = (torch.randn(5, 1, 32, 128, device="cuda").bfloat16() for _ in range(3))
    g, beta = (torch.randn(5, 1, 32, device="cuda") for _ in range(2))
    g, beta = -g.abs(), beta.sigmoid().bfloat16()
    state = torch.randn(5, 32, 128, 128, device="cuda")
    expected, last = reference.reference(
        query,
        key,
        value,
        g=g,
        beta=beta,
        initial_state=state.clone(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    found = decoding_step(query, key, value, g, beta, state)
    assert found.dtype is expected.dtype
    assert torch.allclose(found.float(), expected.float(), rtol=1e-2, atol=1e-3)
    assert torch.allclose(state, last, rtol=1e-4, atol=1e-5)
