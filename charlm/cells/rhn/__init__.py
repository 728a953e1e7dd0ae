"""The recurrent highway network (Zilly et al. 2017)."""

from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from charlm.cells.backend import LayerCall, LayerState
from charlm.cells.base import RecurrentBase, RecurrentOptions
from charlm.cells.rhn.gates import VARIANTS
from charlm.cells.rhn.reference import rhn_layer
from charlm.gpu.recurrence import TensorRecurrence
from charlm.native.recurrence import LayerWeights, Recurrence


class RHN(RecurrentBase):
    """s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d for d = 1…D within a step; s_D is the output and the next s_0.

    Args:
        depth: D, the number of highway layers in one step.
        couple_gates: carry gate c = 1 − g. False learns c, which takes 1.5 times as many parameters.
        gate_bias: initial bias of the transform gate g; a negative value carries more of the state. The biases of a
            learned c start at −gate_bias: 1 − σ(a) = σ(−a), so both forms start with the same share carried.
        others: see `RecurrentBase`. `state_dropout` does not act on the s_{d−1} that c carries over. `zoneout`
            acts once per step: units of s_D keep their value in s_0.

    Shapes: input [T, B, I], output [T, B, H], state [L, B, H].
    Parameters of a layer: `weight_ih` [G·H, I], `weight_hh` [D, G·H, H], `bias_hh` [D, G·H]; the G gates are stacked
    h, g and, if not coupled, c.
    """

    kind = "rhn"
    cpu_kernel = Recurrence(Path(__file__).parent)
    gpu_kernel = TensorRecurrence(VARIANTS)
    option_names = ("depth", "couple_gates", "gate_bias")
    initial_options = ("gate_bias",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        depth: int = 5,
        couple_gates: bool = True,
        gate_bias: float = -2.0,
        **others: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **others)
        self.check_positive(depth=depth)
        self.check_choice((False, True), couple_gates=couple_gates)
        self.check_finite(gate_bias=gate_bias)
        self.depth = depth
        self.couple_gates = couple_gates
        self.gate_bias = gate_bias
        self.create_parameters()

    def parameter_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        D, H = self.depth, self.hidden_size
        rows = (2 if self.couple_gates else 3) * H
        return {
            "weight_ih": (rows, self.layer_input_size(layer)),
            "weight_hh": (D, rows, H),
            "bias_hh": (D, rows),
        }

    def set_special_biases(self) -> None:
        H = self.hidden_size
        for layer in range(self.num_layers):
            bias_DG = self.get_parameter(f"bias_hh_l{layer}")
            bias_DG[:, H : 2 * H] = self.gate_bias
            bias_DG[:, 2 * H :] = -self.gate_bias

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        y_TBH, s_BH = rhn_layer(
            x_TBI,
            *call.state,
            *call.parameters,
            couple_gates=self.couple_gates,
            mask_BH=call.mask_BH,
            kept_TBH=call.kept_TBS,
            seen=call.seen,
        )
        return y_TBH, (s_BH,)

    def layer_weights(self, parameters: list[Tensor]) -> LayerWeights:
        w_ih_GI, w_hh_DGH, b_hh_DG = parameters
        return LayerWeights(w_ih_GI, b_hh_DG[0], w_hh_DGH, b_hh_DG, variant=int(not self.couple_gates))

    @classmethod
    def least_saved_per_unit(cls, **options: Any) -> int:
        return 3 * options["depth"]  # s, h and g of every highway layer
