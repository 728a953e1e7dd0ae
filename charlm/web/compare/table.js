// What came out for each kind, in words for those who meet it for the first time.

import { short, whole } from "../report/numbers.js";
import { cell, heading, runHeading } from "../report/tables.js";
import { element } from "../shared/elements.js";
import { timeSpan } from "../shared/story.js";

const NATS = {
  nats: "best",
  nats_after_updates: "after equal updates",
  nats_after_chars: "after equal characters",
  nats_after_time: "after equal time",
};

const SAME = {
  parameters: "All have about the same number of parameters.",
  time: "Each has the size that charlm chose for it.",
};

/** What the networks have done; all are of one size or not. */
export function comparisonStory({ text, minutes, equal, seeds }) {
  const time = minutes <= 1 ? timeSpan(60 * minutes) : `${Number(minutes.toPrecision(3))} minutes`;
  const told =
    equal === "updates"
      ? `Each network learned to guess the next character of ${text}. All have about the same number of parameters, and made as many updates as the slowest makes in ${time}.`
      : `Each network read ${text} for ${time} and learned to guess its next character. ${SAME[equal]}`;
  return seeds > 1 ? `${told} The table has the means of ${seeds} trainings; all else is of the first.` : told;
}

function gradientText(gradient) {
  if (gradient === null) return "—";
  const rounded = Number(gradient.toPrecision(2));
  return rounded >= 1e-4 ? String(rounded) : short(rounded);
}

/** A row for each run, with the best of every score in bold. */
export function fillComparison(table, runs, rows) {
  const tall = (name) => Object.assign(heading(name), { rowSpan: 2 });
  const others = ["memory, characters", "gradient left", "characters read per second", "parameters", "layers × units"];
  const scores = Object.assign(heading("surprise, nats per character", "colgroup"), { colSpan: 4 });
  const first = element("tr", {}, tall("kind"), scores, ...others.map(tall));
  const second = element("tr", {}, ...Object.values(NATS).map((name) => heading(name)));
  const least = Object.fromEntries(
    Object.keys(NATS).map((key) => [key, Math.min(...rows.map((row) => row[key] ?? Infinity))]),
  );
  const score = (row, key) => {
    const spread = key === "nats" && row.spread !== null ? ` ± ${row.spread.toFixed(3)}` : "";
    const text = row[key] === null ? "—" : `${row[key].toFixed(3)}${spread}`;
    return cell(text, { className: row[key] === least[key] ? "best" : "" });
  };
  const body = rows.map((row, at) =>
    element(
      "tr",
      {},
      runHeading(runs[at], "row"),
      ...Object.keys(NATS).map((key) => score(row, key)),
      cell(whole(row.memory)),
      cell(gradientText(row.gradient)),
      cell(whole(row.chars_per_s)),
      cell(whole(row.parameters)),
      cell(`${row.layers} × ${row.hidden}`),
    ),
  );
  table.replaceChildren(element("thead", {}, first, second), element("tbody", {}, ...body));
}
