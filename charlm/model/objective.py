"""The objective of a window from the outputs of the last layer, with its gradients, by kernels of the CPU.

It computes what `CharLM.window_loss` says in PyTorch's operators, in fewer passes over memory.
"""

from typing import Any

import torch
from torch import Tensor

from charlm.layers.operators import KernelFunction, check_ids, column_sums, first_derivative
from charlm.native.kernels import OUTPUT
from charlm.native.loading import call
from charlm.native.operators import cross_entropy, matmul


def kernel_objective(
    outputs_TBH: Tensor,
    mask: Tensor | None,
    weight_VH: Tensor,
    bias_V: Tensor,
    targets_TB: Tensor,
    scored_steps: int,
    penalties: tuple[float, float],
    *,
    bf16: bool,
) -> tuple[Tensor, Tensor]:
    """The objective, and the cross-entropy in it, without gradients: both 0-d.

    mask: of dropout, [T or 1, B, H]. scored_steps: the last ones are scored. penalties: the weights
    of the mean squares of activations and of changes. All tensors are float32 on the CPU.
    """
    check_ids("targets", targets_TB, len(weight_VH))
    options = scored_steps, penalties, bf16
    objective, total = _Objective.apply(outputs_TBH, mask, weight_VH, bias_V, targets_TB, options)
    return objective, total


class _Objective(KernelFunction):
    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        mask: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        options: tuple[int, tuple[float, float], bool],
    ) -> tuple[Tensor, Tensor]:
        S, penalties, bf16 = options
        (T, B, H), outputs = outputs.shape, outputs.contiguous()
        # The gradients of the objective by half a squared feature, and by half a squared change.
        penalties = {
            "activation": 2 * S * penalties[0] / (T * B * H),
            "change": 2 * S * penalties[1] / (max(T - 1, 1) * B * H),
        }
        features, squares = torch.empty_like(outputs), outputs.new_empty(2, T * B)
        objective, total = outputs.new_empty(()), outputs.new_empty(())
        numbers = {"T": T, "B": B, "H": H, "first": T - S, **penalties}
        if mask is not None:
            mask = mask.contiguous()
            numbers["mask_rows"] = mask.shape[0] * B
        call(OUTPUT, "output_features", **numbers, outputs=outputs, mask=mask, features=features, squares=squares)
        logits = matmul(features[T - S :].view(-1, H), weight.t(), bias, bf16=bf16)
        scored = targets[T - S :].contiguous().view(-1)
        with_backward = any(ctx.needs_input_grad)
        nats, d_logits = cross_entropy(logits, scored, with_backward=with_backward, scale=1 / B)
        call(OUTPUT, "objective", **numbers, squares=squares, nats=nats, objective=objective, cross_entropy=total)
        ctx.numbers, ctx.bf16 = numbers, bf16
        ctx.save_for_backward(outputs, mask, features, d_logits, weight)
        ctx.mark_non_differentiable(total)
        ctx.set_materialize_grads(False)
        return objective, total

    @staticmethod
    @first_derivative
    def backward(ctx: Any, d_objective: Tensor, d_total: Tensor) -> tuple[Tensor | None, ...]:
        outputs, mask, features, d_logits, weight = ctx.saved_tensors
        d_logits = d_logits * d_objective
        d_features, d_outputs = matmul(d_logits, weight, bf16=ctx.bf16), torch.empty_like(outputs)
        forward = {"outputs": outputs, "mask": mask, "features": features}
        gradients = {"d_objective": d_objective, "d_features": d_features, "d_outputs": d_outputs}
        call(OUTPUT, "output_gradient", **ctx.numbers, **forward, **gradients)
        scored = features[ctx.numbers["first"] :].view(len(d_logits), -1)
        return d_outputs, None, matmul(d_logits.t(), scored, bf16=ctx.bf16), column_sums(d_logits), None, None
