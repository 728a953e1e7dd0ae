"""The colors of runs: told apart on paper and in the dark, also by the color-blind."""

import re

import numpy as np
import pytest

from charlm.report.page import COLORS
from tests.conftest import ROOT

CSS = (ROOT / "charlm/web/report/page.css").read_text(encoding="utf-8")
CARDS = (ROOT / "charlm/web/shared/base.css").read_text(encoding="utf-8")
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
# Björn Ottosson's OKLab: from linear RGB to the responses of cones, and from their roots to lightness and two colors.
CONES = np.array(
    [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
)
LAB = np.array(
    [[0.21045426, 0.79361779, -0.00407205], [1.9779985, -2.4285922, 0.45059371], [0.02590404, 0.78277177, -0.80867577]]
)
SIGHTS = {  # what is seen of linear RGB (Machado et al. 2009), and the least distance of two colors in OKLab · 100
    "full": (np.eye(3), 15),
    "no red": (
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        10,
    ),
    "no green": (
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
        10,
    ),
}


def linear(color: str) -> np.ndarray:
    """Linear RGB of #rrggbb, 0 to 1."""
    values = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_run_colors_differ_and_stand_out(theme):
    colors = np.array([linear(color) for color in re.findall(r"--run\d: (#\w{6})", CSS)]).reshape(2, COLORS, 3)[theme]
    for seen, least in SIGHTS.values():
        lab = 100 * np.cbrt(np.clip(colors @ np.transpose(seen), 0, 1) @ CONES.T) @ LAB.T
        distances = np.linalg.norm(lab[:, None] - lab, axis=-1)
        assert distances[~np.eye(COLORS, dtype=bool)].min() >= least
    card = linear(re.findall(r"--card: (#\w{6})", CARDS)[theme]) @ LUMINANCE
    lights = colors @ LUMINANCE
    contrast = (np.maximum(lights, card) + 0.05) / (np.minimum(lights, card) + 0.05)
    assert contrast.min() >= 3
