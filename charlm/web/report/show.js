// What a page shows of runs: charts with what they share, controls and keys, settings.

import { Chart } from "./chart.js";
import { byId, element } from "../shared/elements.js";
import { choice } from "./choice.js";
import { swatch } from "./data.js";
import { AXES, lossIn, short, whole } from "./numbers.js";
import { fillSettings } from "./tables.js";

const WIDE = 30; // largest over least value from which on an axis starts out logarithmic

/** Fills curves.html and settings.html; onHidden(numbers of the runs), onUnit("nats" | "bits"): at once, and when it changes. */
export function showRuns({ runs, settings }, onHidden = () => {}, onUnit = () => {}) {
  const view = {
    axis: "step",
    logX: false,
    smooth: Number(byId("smooth").value),
    unit: "nats",
    range: null, // first and last value of the axis in sight
    hidden: new Set(), // numbers of runs
    splits: new Set(["train", "valid"]),
    cursor: null,
    chart: null, // where the cursor is
  };

  const curves = (key) => [{ split: "train", key }];
  const plain = { smooth: true, unit: () => "", value: (number) => number, text: short };
  const kinds = [
    {
      id: "loss",
      name: "Loss",
      log: false,
      smooth: true,
      unit: () => `${view.unit} per character`,
      curves: [...curves("nats"), { split: "valid", key: "nats", dots: true }],
      value: (nats) => lossIn(view.unit, nats),
      text: (value) => (Number.isNaN(value) ? "—" : value.toFixed(4)),
    },
    { ...plain, id: "lr", smooth: false, name: "Learning rate", log: isWide(runs, "lr"), curves: curves("lr") },
    { ...plain, id: "grad", name: "Gradient norm", log: isWide(runs, "grad_norm"), curves: curves("grad_norm") },
    { ...plain, id: "speed", name: "Characters per second", log: false, curves: curves("chars_per_s") },
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

  function toggle(run) {
    if (!view.hidden.delete(run.number)) view.hidden.add(run.number);
    fillLegend();
    draw();
  }

  function only(run) {
    view.hidden = new Set(runs.filter((other) => other !== run).map(({ number }) => number));
    fillLegend();
    draw();
  }

  function fillLegend() {
    const focused = [...byId("legend").children].indexOf(document.activeElement);
    const buttons = runs.map((run) => {
      const onclick = (event) => (event.shiftKey ? only(run) : toggle(run));
      const button = element("button", { type: "button", onclick }, swatch(run), run.name);
      button.setAttribute("aria-pressed", String(!view.hidden.has(run.number)));
      return button;
    });
    byId("legend").replaceChildren(...buttons);
    buttons[focused]?.focus();
    onHidden(view.hidden);
  }

  function onCheck(id, change) {
    byId(id).addEventListener("change", (event) => {
      change(event.target.checked);
      draw();
    });
  }

  /** Keys of a chart: move the cursor over all points, or zoom around it. */
  function keyed(event, chart) {
    if (!chart.x || event.ctrlKey || event.metaKey || event.altKey) return;
    const points = [...new Set(chart.curves.flatMap(({ at, inside }) => at.slice(...inside)))].sort((a, b) => a - b);
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
      const { low, high } = chart.x;
      const [from, to] = [low, high].map((end) => now + (end - now) * factor);
      zoom(factor > 1 && !view.range ? null : [Math.max(from, view.logX ? 1e-9 : 0), to]);
    } else return;
    event.preventDefault();
  }

  for (const chart of charts) chart.area.addEventListener("keydown", (event) => keyed(event, chart));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      point(null, null);
      zoom(null);
    }
    const run = runs[Number(event.key) - 1];
    if (run && !event.ctrlKey && !event.metaKey && !event.altKey) toggle(run);
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
  onCheck("log-x", (checked) => {
    view.logX = checked;
    view.range = null;
  });
  onCheck("show-train", (checked) => view.splits[checked ? "add" : "delete"]("train"));
  onCheck("show-valid", (checked) => view.splits[checked ? "add" : "delete"]("valid"));
  byId("smooth").addEventListener("input", (event) => {
    view.smooth = Number(event.target.value);
    saySmooth();
    draw();
  });
  function saySmooth() {
    const words = view.smooth ? `${view.smooth} % of the axis` : "off";
    byId("smooth-says").textContent = words;
    byId("smooth").setAttribute("aria-valuetext", words);
  }

  saySmooth();
  byId("zoomed").addEventListener("click", () => zoom(null));

  fillLegend();
  byId("legend").hidden = runs.length === 1;
  fillAllSettings(runs, settings);
}

function fillAllSettings(runs, settings) {
  const known = runs.filter((run) => settings.some(({ values }) => values[run.number] !== null));
  const listed = settings.map((each) => ({ ...each, values: known.map(({ number }) => each.values[number]) }));
  const differing = listed.filter(({ differs }) => differs);
  fillSettings(byId("differing"), known, differing);
  fillSettings(byId("settings"), known, listed);
  byId("differing").hidden = !differing.length;
  byId("all-settings").hidden = !known.length;
  byId("same").textContent = differing.length
    ? `${whole(differing.length)} of ${whole(listed.length)} options differ.`
    : known.length > 1
      ? "The runs have the same settings."
      : "";
}

function isWide(runs, key) {
  const values = runs.flatMap((run) => Array.from(run.curves.train[key]?.mean ?? [])).filter((value) => value > 0);
  return values.length > 1 && values.reduce((a, b) => Math.max(a, b)) / values.reduce((a, b) => Math.min(a, b)) > WIDE;
}
