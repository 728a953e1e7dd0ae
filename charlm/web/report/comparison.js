// What a comparison adds to the page of its runs: a table, gradients, a passage that all read, what each writes.

import { fillLegend, shadeOf, signedShade } from "../shared/colors.js";
import { byId, choice, element } from "../shared/elements.js";
import { linesChart } from "../shared/lines.js";
import { short, timeSpan } from "../shared/numbers.js";
import { runClass, swatch } from "./data.js";
import { fillComparison } from "./tables.js";
import { bitsOf, textOf } from "./texts.js";

const MOST_APART = 2; // bits from the networks' mean, from which on the color is full

/** What the networks have done; all are of one size or not. count: of the runs on the page. */
export function comparisonStory({ text, scored, symbol, minutes, equal, seeds, rows }, count) {
  const time = minutes <= 1 ? timeSpan(60 * minutes) : `${Number(minutes.toPrecision(3))} minutes`;
  const learned =
    equal === "updates"
      ? `Each network made as many updates as the slowest makes in ${time}, and learned to guess the next ${symbol} of ${text}.`
      : `Each network read ${text} for ${time} and learned to guess its next ${symbol}.`;
  const size = equal === "time" ? "Each has the size that charlm chose for it." : "All have about the same number of parameters.";
  const told = `${learned} ${size} Scored on: ${scored}.`;
  if (seeds === 1) return told;
  const all = count > rows.length ? "Curves and settings are those of all trainings; texts, memory and gradients are of the first of each." : "Memory, gradients and all below are of the first of each.";
  return `${told} The table has the means of ${seeds} trainings of each, and their standard deviation. ${all}`;
}

/** Fills the cards; runs: those of the table, in its order. Returns what shows only the runs in sight: show(shows). */
export function openComparison(runs, comparison) {
  const { symbol, gradients, passages, written } = comparison;
  for (const node of document.querySelectorAll(".symbol")) node.textContent = symbol;
  fillComparison(byId("comparison"), runs, comparison);
  byId("after-equal").hidden = comparison.equal === "updates"; // then all have read the same
  byId("cautions").replaceChildren(...comparison.notes.map((textContent) => element("li", { textContent })));
  const showPassages = openPassages(runs, passages);
  return (shows) => {
    const shown = [...runs.keys()].filter((number) => shows(runs[number]));
    byId("gradients").replaceChildren(...shownGradients(shown, runs, gradients, symbol));
    showPassages(shown);
    byId("written").replaceChildren(...shown.map((number) => textOf(runs[number], written[number])));
  };
}

/** The passage, shaded by what the choice says. Returns what shows it as some of the runs read it: show(numbers). */
function openPassages(runs, passages) {
  let shown = [];
  let coloring;
  const bits = (number, index) => bitsOf(passages[number], index);
  function difference(number, index) {
    const sum = shown.reduce((sum, other) => sum + bits(other, index), 0);
    return signedShade((bits(number, index) - sum / shown.length) / MOST_APART) || 0; // NaN: unknown
  }
  const colorings = {
    difference: { label: "Difference", words: [`${MOST_APART} bits less surprised than the mean of those shown`, `${MOST_APART} bits more`], isSigned: true, shade: difference },
    surprise: { label: "Surprise", words: ["expected", "surprising"], shade: (number, index) => shadeOf(bits(number, index)) },
  };
  function draw() {
    const { words, isSigned, shade } = colorings[shown.length > 1 ? coloring : "surprise"];
    fillLegend(byId("passage-legend"), words, isSigned);
    const texts = shown.map((number) => textOf(runs[number], passages[number], "", (index) => shade(number, index)));
    byId("passages").replaceChildren(...texts);
  }
  const entries = Object.entries(colorings).map(([name, { label }]) => [name, label]);
  choice(byId("passage-colors"), entries, "difference", (name) => {
    coloring = name;
    draw();
  });
  return (numbers) => {
    shown = numbers;
    draw();
  };
}

function shownGradients(shown, runs, gradients, symbol) {
  const lines = ["untrained", "trained"].flatMap((state) =>
    shown.map((number) => ({
      name: `${runs[number].name}, ${state}`,
      className: `${runClass(runs[number])} ${state}`,
      points: Array.from(gradients[number][state], (left, index) => [index + 1, left]),
    })),
  );
  const told = shown.map((number) => {
    const left = (state) => short(Number(gradients[number][state].at(-1)?.toPrecision(2)));
    return `${runs[number].name} ${left("trained")} trained, ${left("untrained")} untrained`;
  });
  const back = Math.max(0, ...lines.map(({ points }) => points.length));
  const words = `What is left of the gradient ${back} ${symbol}s back: ${told.join("; ")}.`;
  const names = shown.map((number) => element("span", {}, swatch(runs[number]), ` ${runs[number].name} `));
  return [element("p", { className: "bar" }, ...names), linesChart(lines, { title: "Gradients", words, label: `${symbol}s back`, logY: true })];
}
