"""Copies of linear weights in half precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bas_opd.model.rounded import TOGETHER, RoundedLinears, side_by_side


class Mixer(nn.Module):
    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.out_proj = nn.Linear(12, 8, bias=False)
        self.in_proj_qkv = nn.Linear(8, 24, bias=bias)
        self.in_proj_a = nn.Linear(8, 3, bias=False)
        self.in_proj_b = nn.Linear(8, 3, bias=False)


def together(mixer: Mixer) -> list[nn.Module]:
    return [getattr(mixer, name) for name in TOGETHER]


def test_layers_compute_with_copies_that_stay_in_their_place() -> None:
    network = nn.ModuleList([Mixer(), nn.Linear(8, 5)])
    own = dict(network.named_parameters())
    rounded = RoundedLinears(network, torch.bfloat16)
    linears = [parameter for parameter in own.values() if parameter.ndim == 2]
    assert rounded.size == sum(2 * weight.numel() for weight in linears)
    places = None
    for factor in (1.0, 2.0):
        with torch.no_grad():
            for parameter in own.values():
                parameter.mul_(factor)
        rounded.refresh()
        with rounded.lent():
            lent = dict(network.named_parameters())
            places = places or {name: weight.data_ptr() for name, weight in lent.items()}
            assert places == {name: weight.data_ptr() for name, weight in lent.items()}
            for name, weight in own.items():
                is_copied = weight.ndim == 2
                assert torch.equal(lent[name], weight.bfloat16() if is_copied else weight)
                assert lent[name].requires_grad != is_copied
        assert dict(network.named_parameters()) == own


def test_copies_of_what_is_read_together_are_one_matrix() -> None:
    mixer = Mixer()
    rounded = RoundedLinears(mixer, torch.bfloat16)
    rounded.refresh()
    assert side_by_side(together(mixer)) is None
    with rounded.lent():
        found = side_by_side(together(mixer))
        assert found is not None
        expected = torch.cat([getattr(mixer, name).weight for name in TOGETHER])
        assert torch.equal(found, expected)
        assert found.data_ptr() == mixer.in_proj_qkv.weight.data_ptr()
        assert side_by_side([mixer.in_proj_qkv, mixer.in_proj_a]) is None  # b lies between
        assert side_by_side([mixer.out_proj]) is not None


@pytest.mark.parametrize("kind", ["bias", "another layer", "frozen"])
def test_other_layers_are_not_one_matrix(kind: str) -> None:
    mixer = Mixer(bias=kind == "bias")
    if kind == "another layer":
        mixer.in_proj_b = nn.Bilinear(8, 8, 3)  # type: ignore[assignment]
    if kind == "frozen":
        mixer.in_proj_b.bfloat16()
    rounded = RoundedLinears(mixer, torch.bfloat16)
    rounded.refresh()
    with rounded.lent():
        assert side_by_side(together(mixer)) is None
