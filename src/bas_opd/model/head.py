"""The projection from hidden states to logits as products in half precision with fp32 sums."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from bas_opd.compute.compiling import has_kernels, launching_on

WIDTH = 64
"""The columns of a product on some ids are a multiple of this."""
LARGEST_K = 128
"""With more ids of each token, products take less time than a kernel."""
STATE_TILE = {"tile": 16, "wide": 256}
WEIGHT_TILE = {"tile": 8, "wide": 512}
"""Ids and units that a program reads at a time."""


class Head:
    """Weights `[vocab, hidden]` that are kept in fp32 and multiplied in half precision.

    Some that are in half precision already, as those of a frozen teacher, are multiplied as is.
    Sums and results are fp32: logits that were rounded are too coarse to compare two similar
    models. The rounded copy of the weights is made again when they have changed, in the same
    place, because a captured CUDA graph reads it there.
    """

    def __init__(
        self, weight: Tensor, precision: torch.dtype, device: torch.device | None = None
    ) -> None:
        self.weight = weight
        self._precision = precision
        self._device = weight.device if device is None else device
        self._rounded: Tensor | None = None
        self._source: tuple[int, int] | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits in fp32. Autograd goes back to the hidden states and the weights."""
        return _Projection.apply(hidden, self.weight, self.rounded())

    def rounded(self) -> Tensor:
        """Return the weights in half precision."""
        if self.weight.dtype is self._precision:
            return self.weight
        if self._rounded is None:
            shape = self.weight.shape
            self._rounded = torch.empty(shape, dtype=self._precision, device=self._device)
        source = (self.weight.data_ptr(), self.weight._version)
        if source != self._source:
            # Weights in host memory are rounded on the device as well.
            self._rounded.copy_(self.weight.detach().to(self._device))
            self._source = source
        return self._rounded

    def replace(self, weight: Tensor) -> None:
        """Use other weights of the same shape from now on."""
        self.weight = weight
        self.forget()

    def forget(self, *_: Any) -> None:
        """Round the weights again before their next use: a fused optimizer changes them unseen."""
        self._source = None

    @torch.no_grad()
    def backward(self, hidden: Tensor, gradient: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return the gradient of the hidden states from that of the logits, in half precision.

        With `ids` `[token, k]`, it is the gradient of these logits of each token, and the others
        have none. The gradient of the weights is added to their `.grad`.
        """
        weights = self.rounded()
        if ids is not None:
            if self._has_kernels(gradient):
                return self._backward_at(hidden, gradient, ids)
            gradient, ids = _over_all_ids(gradient, ids)
            # Products of other widths run on slow kernels. Columns of zeros change nothing.
            spare = -len(ids) % WIDTH
            gradient = nn.functional.pad(gradient, (0, spare))
            weights = weights[nn.functional.pad(ids, (0, spare))]
        if self.weight.requires_grad:
            self._add_gradient(gradient.T, hidden.to(gradient.dtype), ids)
        return product(gradient, weights).to(hidden.dtype)

    def _has_kernels(self, gradient: Tensor) -> bool:
        weight, is_small = self.weight, gradient.shape[-1] <= LARGEST_K
        is_plain = weight.is_contiguous() and weight.dtype is torch.float32
        return is_small and is_plain and has_kernels(gradient.device)

    def _backward_at(self, hidden: Tensor, gradient: Tensor, ids: Tensor) -> Tensor:
        """Do the same in two kernels that skip the zeros. Sums have a fixed order."""
        kernels: Any = importlib.import_module("bas_opd.model.triton_head")
        weights, (tokens, k) = self.rounded(), gradient.shape
        width = weights.shape[-1]
        states, values = hidden.to(weights.dtype).contiguous(), gradient.contiguous()
        back = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
        with launching_on(values):
            kernels.to_states[(tokens, -(-width // STATE_TILE["wide"]))](
                *(values, ids.contiguous(), weights, back, k, width), **STATE_TILE
            )
            if self.weight.requires_grad:
                if self.weight.grad is None:
                    self.weight.grad = torch.zeros_like(self.weight)
                # A stable sort: of equal ids the tokens ascend, so sums have a fixed order.
                ordered, places = ids.int().flatten().sort(stable=True)
                kernels.add_to_weights[(len(ordered), -(-width // WEIGHT_TILE["wide"]))](
                    *(values.flatten()[places], states, ordered, (places // k).int()),
                    torch.searchsorted(ordered, ordered, right=True, out_int32=True),
                    *(self.weight.grad, width),
                    **WEIGHT_TILE,
                )
        return back

    def _add_gradient(self, left: Tensor, right: Tensor, ids: Tensor | None) -> None:
        if ids is None and self.weight.grad is None:
            self.weight.grad = product(left, right)
            return
        if self.weight.grad is None:
            self.weight.grad = torch.zeros_like(self.weight)
        if ids is None:
            add_product(self.weight.grad, left, right)
        else:
            added = product(left, right)[: len(ids)]
            self.weight.grad.index_copy_(0, ids, added.add_(self.weight.grad[ids]))


def _over_all_ids(gradient: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient over the ids of all tokens `[token, id]`, and these ids, each once."""
    every, place = ids.unique(return_inverse=True)
    values = gradient.new_zeros(len(gradient), len(every))
    return values.scatter_(-1, place, gradient), every


def plain_head(head: nn.Module) -> Tensor | None:
    """Return the weights of a head that only multiplies; None if it does more."""
    if type(head) is nn.Linear and head.bias is None:
        return head.weight
    return None


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right of half-precision matrices, in fp32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right of half-precision matrices to an fp32 matrix."""
    if left.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total += product(left, right)


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, rounded: Tensor) -> Tensor:
        narrow = hidden.to(rounded.dtype)
        ctx.save_for_backward(narrow)
        ctx.rounded, ctx.dtype = rounded, hidden.dtype
        return product(narrow, rounded.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (narrow,) = ctx.saved_tensors
        gradient = gradients[0].to(narrow.dtype)
        of_hidden = of_weight = None
        if ctx.needs_input_grad[0]:
            of_hidden = product(gradient, ctx.rounded).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = product(gradient.T, narrow)
        return of_hidden, of_weight, None
