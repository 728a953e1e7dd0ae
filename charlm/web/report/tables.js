// Tables: final scores, and settings.

import { element } from "../shared/elements.js";
import { swatch } from "./data.js";
import { compact, duration, lossText, whole } from "./numbers.js";

export const cell = (text, properties = {}) => element("td", { textContent: text, ...properties });

export function heading(text, scope = "col") {
  return element("th", { textContent: text, scope });
}

export function runHeading(run, scope) {
  return element("th", { scope }, swatch(run), ` ${run.name}`);
}

const STATES = { "in use": "training", resumable: "stopped" };

/** One row for each run; of the runs on the same text, the best validation score is bold. */
export function fillScores(table, runs, unit) {
  const names = ["run", "text", "model", "parameters", "updates", "characters read", "time", `best validation, ${unit}`];
  const more = ["last validation", "last training", "characters/s, median", "state"];
  const rows = runs.map((run) => {
    const { scores } = run;
    const first = cell(lossText(unit, scores.best_nats));
    if (isBest(run, runs)) first.className = "best";
    return element(
      "tr",
      {},
      runHeading(run, "row"),
      cell(run.text ?? "—"),
      cell(run.model ?? "—"),
      cell(whole(scores.parameters)),
      cell(whole(scores.step)),
      cell(scores.chars === null ? "—" : compact(scores.chars)),
      cell(duration(scores.elapsed_s)),
      first,
      cell(lossText(unit, scores.last_nats)),
      cell(lossText(unit, scores.train_nats)),
      cell(whole(scores.chars_per_s)),
      cell(STATES[scores.state] ?? scores.state),
    );
  });
  const head = element("tr", {}, ...[...names, ...more].map((name) => heading(name)));
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

/** Whether no run on the same text has a better score, and another has a score at all. */
function isBest({ ranked, scores }, runs) {
  const all = runs.filter((run) => run.ranked === ranked && run.scores.best_nats !== null);
  const least = Math.min(...all.map((run) => run.scores.best_nats));
  return ranked !== null && all.length > 1 && scores.best_nats === least;
}

/** Options by run; null where a run has no such option. */
export function fillSettings(table, runs, settings) {
  const head = element("tr", {}, heading("option"), ...runs.map((run) => runHeading(run, "col")));
  const rows = settings.map(({ key, values, differs }) =>
    element(
      "tr",
      { className: differs ? "differs" : "" },
      heading(key, "row"),
      ...values.map((value) => cell(value ?? "—")),
    ),
  );
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

/** Lines about runs: what happened, what is missing. */
export function fillNotes(list, runs) {
  const rows = runs.flatMap((run) => [
    ...run.rollbacks.map(({ text, at }) => [run, `update ${whole(at.step)}: ${text}`, ""]),
    ...run.faults.map((text) => [run, text, "fault"]),
  ]);
  const lines = rows.map(([run, text, className]) =>
    element("li", { className }, swatch(run), element("b", { textContent: ` ${run.name} ` }), text),
  );
  list.replaceChildren(...lines);
}
