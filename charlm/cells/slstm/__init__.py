"""The LSTM with exponential gates and scalar memory (Beck et al. 2024)."""

from pathlib import Path
from typing import Any, Unpack, get_args

from torch import Tensor

from charlm.cells.backend import LayerCall, LayerState
from charlm.cells.base import RecurrentBase, RecurrentOptions
from charlm.cells.slstm.gates import VARIANTS
from charlm.cells.slstm.reference import ForgetGate, slstm_layer
from charlm.gpu.recurrence import TensorRecurrence
from charlm.native.recurrence import LayerWeights, Recurrence


class SLSTM(RecurrentBase):
    """c_t = f ⊙ c_{t−1} + i ⊙ tanh(z), n_t = f ⊙ n_{t−1} + i, h_t = σ(o) ⊙ c_t / n_t with i = exp(a_i).

    The sLSTM cell with one head; xLSTM's blocks around it are not part of it.

    Args:
        forget_gate: f = σ(a_f), "sigmoid", or exp(a_f), "exponential".
        forget_bias: initial bias of the forget gate.
        others: see `RecurrentBase`. `state_dropout` and `zoneout` act on h only.

    Shapes: input [T, B, I], output [T, B, H], state (h, c, n, m) of [L, B, H]; c and n are scaled by e^−m.
    Parameters of a layer: `weight_ih` [4·H, I], `weight_hh` [4·H, H], `bias` [4·H]; gates are stacked i, f, z, o.
    """

    kind = "slstm"
    cpu_kernel = Recurrence(Path(__file__).parent)
    gpu_kernel = TensorRecurrence(VARIANTS)
    state_names = ("h", "c", "n", "m")
    option_names = ("forget_gate", "forget_bias")
    initial_options = ("forget_bias",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        forget_gate: ForgetGate = "sigmoid",
        forget_bias: float = 1.0,
        **others: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **others)
        self.check_choice(get_args(ForgetGate), forget_gate=forget_gate)
        self.check_finite(forget_bias=forget_bias)
        self.forget_gate: ForgetGate = forget_gate
        self.forget_bias = forget_bias
        self.create_parameters()

    def parameter_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        H = self.hidden_size
        return {"weight_ih": (4 * H, self.layer_input_size(layer)), "weight_hh": (4 * H, H), "bias": (4 * H,)}

    def set_special_biases(self) -> None:
        for layer in range(self.num_layers):
            self.get_parameter(f"bias_l{layer}")[self.hidden_size : 2 * self.hidden_size] = self.forget_bias

    def kept_share(self, state: LayerState, steps: int, training: bool, like: Tensor) -> Tensor | None:
        kept_TBS = super().kept_share(state, steps, training, like)
        if kept_TBS is not None:
            kept_TBS[..., self.hidden_size :] = 0  # c, n and m
        return kept_TBS

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        kept_TBH = None if call.kept_TBS is None else call.kept_TBS[..., : self.hidden_size]
        y_TBH, *last = slstm_layer(
            x_TBI,
            *call.state,
            *call.parameters,
            forget_gate=self.forget_gate,
            mask_BH=call.mask_BH,
            kept_TBH=kept_TBH,
            seen=call.seen,
        )
        return y_TBH, tuple(last)

    def layer_weights(self, parameters: list[Tensor]) -> LayerWeights:
        w_ih_GI, w_hh_GH, bias_G = parameters
        return LayerWeights(w_ih_GI, bias_G, w_hh_GH, variant=get_args(ForgetGate).index(self.forget_gate))

    @classmethod
    def least_saved_per_unit(cls, **options: Any) -> int:
        return 9  # four states, four gates and the slope of the forget gate
