// The charts, what they share, and their controls and keys.

import { byId, choice, element, oneStop } from "../shared/elements.js";
import { short } from "../shared/numbers.js";
import { Chart, SMOOTHED } from "./chart.js";
import { swatch } from "./data.js";
import { AXES, scoreIn } from "./numbers.js";

const WIDE = 30; // largest over least value from which on an axis starts out logarithmic

/** onShown(whether a run is shown), onUnit("nats" | "bits"): at once, and when it changes. */
export function showCharts(runs, onShown, onUnit) {
  const hidden = new Set();
  const view = {
    axis: "step",
    logX: false,
    smooth: Number(byId("smooth").value),
    unit: "nats",
    range: null, // first and last value of the axis in sight
    splits: new Set(["train", "valid"]),
    cursor: null,
    chart: null, // where the cursor is
    shows: (run) => !hidden.has(run),
  };

  const curves = (key) => [{ split: "train", key }];
  const plain = { smooth: true, log: false, unit: () => "", value: (number) => number, text: short };
  const kinds = [
    {
      id: "score",
      name: "Score",
      log: false,
      smooth: true,
      unit: () => `${view.unit} per character`,
      curves: [...curves("nats"), { split: "valid", key: "nats", dots: true }],
      value: (nats) => scoreIn(view.unit, nats),
      text: (value) => (Number.isNaN(value) ? "—" : value.toFixed(4)),
    },
    { ...plain, id: "lr", smooth: false, name: "Learning rate", log: isWide(runs, "lr"), curves: curves("lr") },
    { ...plain, id: "grad", name: "Gradient norm", log: isWide(runs, "grad_norm"), curves: curves("grad_norm") },
    { ...plain, id: "speed", name: "Speed", unit: () => "characters per second", curves: curves("chars_per_s") },
  ];
  const charts = kinds.map((what) => new Chart(byId(`chart-${what.id}`), runs, what, view, point, zoom));

  function draw() {
    for (const chart of charts) chart.draw();
    byId("zoomed").hidden = !view.range;
  }

  function point(at, chart) {
    view.cursor = at;
    view.chart = chart;
    for (const other of charts) other.drawCursor();
  }

  function zoom(range) {
    view.range = range;
    draw();
  }

  function toggle(run, button) {
    if (!hidden.delete(run)) hidden.add(run);
    button.setAttribute("aria-pressed", String(!hidden.has(run)));
    onShown(view.shows);
    draw();
  }

  /** Keys of a chart: move the cursor over all points, or zoom around it. */
  function keyed(event, chart) {
    if (!chart.x || event.ctrlKey || event.metaKey || event.altKey) return;
    const { low, high } = chart.x;
    const isIn = (place) => place >= low && place <= high;
    const points = [...new Set(chart.curves.flatMap(({ at }) => at.filter(isIn)))].sort((a, b) => a - b);
    if (!points.length) return;
    const now = view.cursor ?? points[0];
    const here = Math.max(0, points.findIndex((point) => point >= now));
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (event.key in steps) {
      const next = view.cursor === null ? 0 : here + steps[event.key];
      point(points[Math.max(0, Math.min(points.length - 1, next))], chart);
      byId("spoken").textContent = `${AXES[view.axis].text(view.cursor)}: ${chart.says()}`;
    } else if (factor) {
      const [from, to] = [low, high].map((end) => now + (end - now) * factor);
      zoom(factor > 1 && !view.range ? null : [Math.max(from, view.logX ? 1e-9 : 0), to]);
    } else return;
    event.preventDefault();
  }

  for (const chart of charts) chart.area.addEventListener("keydown", (event) => keyed(event, chart));
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    point(null, null);
    zoom(null);
  });
  choice(byId("axis"), Object.entries(AXES).map(([name, { label }]) => [name, label]), view.axis, (name) => {
    view.axis = name;
    view.cursor = null;
    zoom(null);
  });
  choice(byId("unit"), [["nats", "nats"], ["bits", "bits"]], view.unit, (unit) => {
    view.unit = unit;
    onUnit(unit);
    draw();
  });
  onShown(view.shows);
  byId("log-x").addEventListener("change", ({ target }) => {
    view.logX = target.checked;
    zoom(null);
  });
  for (const split of view.splits) {
    byId(`show-${split}`).addEventListener("change", ({ target }) => {
      view.splits[target.checked ? "add" : "delete"](split);
      draw();
    });
  }
  const isSmooth = runs.some(({ curves: { train } }) => train.rows >= SMOOTHED);
  byId("smooth").parentElement.hidden = !isSmooth;
  byId("smooth").addEventListener("input", ({ target }) => {
    view.smooth = Number(target.value);
    const words = view.smooth ? `${view.smooth}% of the axis` : "off";
    byId("smooth-says").textContent = words;
    target.setAttribute("aria-valuetext", words);
    draw();
  });
  byId("smooth").dispatchEvent(new Event("input"));
  byId("zoomed").addEventListener("click", () => zoom(null));
  const buttons = runs.map((run) => {
    const name = element("span", { textContent: run.name });
    const button = element("button", { type: "button", title: run.name, "aria-pressed": "true" }, swatch(run), name);
    button.onclick = () => toggle(run, button);
    return button;
  });
  byId("legend").replaceChildren(...buttons);
  byId("legend").hidden = runs.length === 1;
  oneStop(byId("legend"));
  // On paper, each chart is drawn to its width there.
  for (const [event, isPaper] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      document.body.classList.toggle("paper", isPaper);
      draw();
    });
  }
}

function isWide(runs, key) {
  const values = runs.flatMap((run) => Array.from(run.curves.train[key]?.mean ?? [])).filter((value) => value > 0);
  return values.length > 1 && values.reduce((a, b) => Math.max(a, b)) / values.reduce((a, b) => Math.min(a, b)) > WIDE;
}
