"""Speed targets, and whether the measured rows reach them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench_measure import Row, show


@dataclass(frozen=True)
class Target:
    """Bounds for a figure in all rows that `of` selects, judged by the worst of them."""

    text: str
    section: str
    figures: tuple[str, ...]
    of: Callable[[Row], bool] = lambda row: True
    least: float = float("-inf")
    most: float = float("inf")

    @property
    def asked_in(self) -> str:
        """The command-line section that measures this."""
        return "kernels" if self.section == "bf16" else self.section

    def judge(self, rows: list[Row]) -> dict[str, Any]:
        """Print the worst figure, the row it comes from, and whether it is within the bounds."""
        found = [
            (row.figures[name].median, name, row)
            for row in rows
            if row.section == self.section and row.device == "cpu" and self.of(row)
            for name in self.figures
            if name in row.figures
        ]
        if not found:
            print(f"  {self.text:<56} not measured")
            return {"target": self.text, "found": None, "where": None, "reached": None}
        value, name, row = min(found, key=lambda one: min(one[0] - self.least, self.most - one[0]))
        where = f"{row}, {name}" if len(self.figures) > 1 else str(row)
        reached = self.least <= value <= self.most
        verdict = "reached" if reached else "not reached"
        worst = "" if len(found) == 1 else f"worst of {len(found)}: "
        print(f"  {self.text:<56} {show(value):>6}  {verdict:<12} {worst}{where}")
        return {"target": self.text, "found": value, "where": where, "rows": len(found), "reached": reached}


def _is(what: str, **shape: int) -> Callable[[Row], bool]:
    return lambda row: row.what == what and shape.items() <= row.shape.items()


def _starts(*names: str) -> Callable[[Row], bool]:
    """Rows of these kinds, with any number of layers."""
    return lambda row: row.what.removesuffix(" ×2") in names


TARGETS = [
    Target("RHN D5 ÷ GEMM ≥ 0.75 (H 512, 1024)", "kernels", ("÷ GEMM",), _is("RHN D5", B=64), least=0.75),
    Target("RHN D5 ÷ reference loop ≥ 4 (H 512)", "kernels", ("÷ reference",), _is("RHN D5", H=512), least=4),
    Target("RHN D5 ÷ reference loop ≥ 8 (H 128)", "kernels", ("÷ reference",), _is("RHN D5", H=128), least=8),
    Target("LSTM layer norm ÷ nn.LSTM without ≥ 0.8", "kernels", ("÷ torch",), _is("LSTM layer norm"), least=0.8),
    Target("LSTM ÷ nn.LSTM ≥ 1.0 at every shape", "kernels", ("÷ torch",), _starts("LSTM"), least=1.0),
    Target("GRU ÷ nn.GRU ≥ 1.0 at every shape", "kernels", ("÷ torch",), _starts("GRU"), least=1.0),
    Target("RNN ÷ nn.RNN ≥ 2.0 at every shape", "kernels", ("÷ torch",), _starts("RNN"), least=2.0),
    Target("bf16 ÷ fp32 ≥ 1.5 (H ≥ 512)", "bf16", ("÷ fp32",), least=1.5),
    Target("LSTM ÷ nn.LSTM ≥ 1.05 over the grid", "grid", ("÷ torch",), _is("LSTM"), least=1.05),
    Target("RNN ÷ nn.RNN ≥ 1.2 (H 512, B 64)", "grid", ("÷ torch",), _is("RNN", H=512, B=64), least=1.2),
    Target("bf16 ÷ fp32, LSTM ≥ 2.6 (B 16)", "grid", ("bf16 ÷ fp32",), _is("LSTM", H=384, B=16), least=2.6),
    Target("bf16 ÷ fp32, RHN ≥ 2.3 (B 16)", "grid", ("bf16 ÷ fp32",), _is("RHN D4", H=224, B=16), least=2.3),
    Target("backward ≤ 2.1 × forward", "grid", ("backward ÷ forward",), most=2.1),
    Target("LSTM ÷ nn.LSTM ≥ 0.95 beside busy processes", "busy", ("÷ torch",), least=0.95),
    Target("train ÷ bare layers ≥ 0.9", "train", ("÷ bare",), least=0.9),
    Target("lines ÷ running text ≥ 0.9", "lines", ("÷ text",), least=0.9),
    Target(
        "sampling, one stream ÷ eager loop ≥ 5", "sampling", ("÷ eager",), lambda r: r.shape["streams"] == 1, least=5
    ),
    Target("encoding ≥ 200 MB/s", "encoding", ("MB/s",), least=200),
    Target("encoding's memory < 300 MB", "encoding", ("memory MB",), most=300),
    Target("scaling ≤ 1.10 × proportional", "scaling", ("2×", "4×", "8×"), most=1.1),
    Target("scaling ≥ 0.90 × proportional (less: fixed costs)", "scaling", ("2×", "4×", "8×"), least=0.9),
]
