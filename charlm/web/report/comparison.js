// What a comparison adds to the page of its runs: a table, gradients, a passage that all read, what each writes.

import { byId, element } from "../shared/elements.js";
import { linesChart } from "../shared/lines.js";
import { short, timeSpan } from "../shared/numbers.js";
import { runClass, swatch } from "./data.js";
import { fillComparison } from "./tables.js";
import { textOf } from "./texts.js";

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
  byId("cautions").replaceChildren(...comparison.notes.map((textContent) => element("li", { textContent })));
  return (shows) => {
    const shown = [...runs.keys()].filter((number) => shows(runs[number]));
    byId("gradients").replaceChildren(...shownGradients(shown, runs, gradients, symbol));
    byId("passages").replaceChildren(...shown.map((number) => textOf(runs[number], passages[number])));
    byId("written").replaceChildren(...shown.map((number) => textOf(runs[number], written[number])));
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
  return [element("p", { className: "bar" }, ...names), linesChart(lines, { words, label: `${symbol}s back`, logY: true })];
}
