"""Characters per second of exported pages in headless Chromium, sampling included.

python benchmarks/browser.py [SECONDS]
"""

import sys
import tempfile
from pathlib import Path
from shutil import which
from typing import Any

from playwright.sync_api import sync_playwright

from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.export.html import packed_model
from charlm.inference.trained import TrainedModel
from charlm.model import build_model
from charlm.web.page import joined_modules

CELLS: dict[str, dict[str, Any]] = {
    "LSTM, 512 units": {"kind": "lstm", "hidden": 512},
    "RHN, 320 units, depth 5": {"kind": "rhn", "hidden": 320, "depth": 5},
}
CHARACTERS = 65

MEASURE = """async ({ data, seconds }) => {
  const { openModel, unpacked, Uniform, choose } = engine;
  const start = performance.now();
  const model = await openModel(await unpacked(data));
  const [state, uniform] = [model.start(), new Uniform(1)];
  let id = choose(model.read(state, 0), {}, uniform.next());
  const first = performance.now() - start;
  const write = (milliseconds) => {
    const start = performance.now();
    let written = 0;
    for (; performance.now() - start < milliseconds; written++)
      id = choose(model.read(state, id), { temperature: 0.8, topP: 0.95 }, uniform.next());
    return (1000 * written) / (performance.now() - start);
  };
  write(500); // until the browser has compiled it all
  return [first, write(1000 * seconds)];
}"""


def model_of(cell: dict[str, Any]) -> TrainedModel:
    """A model with random weights."""
    config = parse_config({"model": {"cell": cell, "embedding": 64}}, "benchmark")
    vocabulary = Vocabulary("char", "".join(map(chr, range(32, 32 + CHARACTERS))))
    network = build_model(config.model, CHARACTERS).eval()
    return TrainedModel(Path("none"), network, vocabulary, config, {})


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    script = joined_modules("model", roots=["engine.js", "random.js", "choose.js"])
    with sync_playwright() as tools, tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(
            f'<script type="module">{script} window.engine = {{ openModel, unpacked, Uniform, choose }};</script>',
            "utf-8",
        )
        browser = tools.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        for name, cell in CELLS.items():
            for weights in ("int8", "float32"):
                data = packed_model(model_of(cell), weights)["model"]
                view = browser.new_page()
                view.goto(page.as_uri())
                first_ms, chars_per_s = view.evaluate(MEASURE, {"data": data, "seconds": seconds})
                print(
                    f"{name:24} {weights:8} {chars_per_s:8,.0f} characters/s; the first after {first_ms:,.0f} ms",
                    flush=True,
                )
                view.close()
        browser.close()


if __name__ == "__main__":
    main()
