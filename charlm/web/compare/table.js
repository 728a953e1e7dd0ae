// What came out for each kind, in words for those who meet it for the first time.

import { short, whole } from "../report/numbers.js";
import { cell, heading, runHeading } from "../report/tables.js";
import { element } from "../shared/elements.js";
import { timeSpan } from "../shared/story.js";

const SAME = {
  parameters: "All have about the same number of parameters.",
  time: "Each has the size that charlm chose for it.",
};

/** What the networks have done; all are of one size or not. */
export function comparisonStory({ text, symbol, minutes, equal, seeds }) {
  const time = minutes <= 1 ? timeSpan(60 * minutes) : `${Number(minutes.toPrecision(3))} minutes`;
  const told =
    equal === "updates"
      ? `Each network learned to guess the next ${symbol} of ${text}. All have about the same number of parameters, and made as many updates as the slowest makes in ${time}.`
      : `Each network read ${text} for ${time} and learned to guess its next ${symbol}. ${SAME[equal]}`;
  return seeds > 1 ? `${told} The table has the means of ${seeds} trainings; all else is of the first.` : told;
}

function gradientText(gradient) {
  if (gradient === null) return "—";
  const rounded = Number(gradient.toPrecision(2));
  return rounded >= 1e-4 ? String(rounded) : short(rounded);
}

/** A row for each run, with the best of every score in bold; what the text below explains comes first. */
export function fillComparison(table, { runs, rows, symbol, equal }) {
  const names = ["kind", `surprise, nats per ${symbol}`, `memory, ${symbol}s`, "gradient left"];
  const isAfter = equal !== "updates"; // else all have read the same
  if (isAfter) names.push(`surprise after equal ${symbol}s`);
  const others = [`${symbol}s read per second`, "parameters", "layers × units"];
  const score = (row, key) => {
    const spread = key === "nats" && row.spread !== null ? ` ± ${row.spread.toFixed(3)}` : "";
    const text = row[key] === null ? "—" : `${row[key].toFixed(3)}${spread}`;
    const least = Math.min(...rows.map((other) => other[key] ?? Infinity));
    return cell(text, { className: row[key] === least ? "best" : "" });
  };
  const body = rows.map((row, at) =>
    element(
      "tr",
      {},
      runHeading(runs[at], "row"),
      score(row, "nats"),
      cell(whole(row.memory)),
      cell(gradientText(row.gradient)),
      ...(isAfter ? [score(row, "nats_after_chars")] : []),
      cell(whole(row.chars_per_s)),
      cell(whole(row.parameters)),
      cell(`${row.layers} × ${row.hidden}`),
    ),
  );
  const head = element("tr", {}, ...[...names, ...others].map((name) => heading(name)));
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}
