// Tables: what came out for each kind of cell, final scores, and settings.

import { element } from "../shared/elements.js";
import { compact, short, whole } from "../shared/numbers.js";
import { swatch } from "./data.js";
import { duration, scoreText } from "./numbers.js";

const cell = (text, className = "") => element("td", { textContent: text, className });
const figure = (text, className = "") => cell(text, `figure ${className}`.trim());
const heading = (text, scope = "col") => element("th", { textContent: text, scope });
const runHeading = (run, scope) => element("th", { scope }, swatch(run), `\u00a0${run.name}`);

/** The path of an option, which may break behind its dots. */
function optionHeading(key) {
  const parts = key.split(/(?<=\.)/).flatMap((part) => [part, element("wbr")]);
  return element("th", { scope: "row" }, ...parts);
}

function fillTable(table, head, rows) {
  const body = rows.map((cells) => element("tr", {}, ...cells));
  head.forEach((name, column) => name.classList.toggle("figure", Boolean(rows[0]?.[column].classList.contains("figure"))));
  table.replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

/** A row for each kind, with the best of each score in bold. */
export function fillComparison(table, runs, { runs: kinds, rows, symbol, equal, seeds }) {
  const names = ["kind", seeds > 1 ? "score, nats per character: mean ± deviation" : "score, nats per character"];
  names.push(`memory, ${symbol}s`, "gradient left");
  const isAfter = equal !== "updates"; // else all have read the same
  if (isAfter) names.push("score after equal characters");
  names.push("characters read per second", "parameters", "layers × units");
  const score = (row, key) => {
    const spread = key === "nats" && row.spread !== null ? ` ± ${row.spread.toFixed(3)}` : "";
    const text = row[key] === null ? "—" : `${row[key].toFixed(3)}${spread}`;
    const least = Math.min(...rows.map((other) => other[key] ?? Infinity));
    return figure(text, row[key] === least ? "best" : "");
  };
  const body = rows.map((row, number) => [
    runHeading({ ...runs[number], name: Object.values(kinds)[number] }, "row"),
    score(row, "nats"),
    figure(whole(row.memory)),
    figure(row.gradient === null ? "—" : short(Number(row.gradient.toPrecision(2)))),
    ...(isAfter ? [score(row, "nats_after_chars")] : []),
    figure(whole(row.chars_per_s)),
    figure(whole(row.parameters)),
    cell(`${row.layers} × ${row.hidden}`),
  ]);
  fillTable(table, names.map((name) => heading(name)), body);
}

const STATES = { "in use": "training", resumable: "stopped" };

/** One row for each run, those that are scored on the same text together; of these, the best score is bold. */
export function fillScores(table, runs, unit) {
  const names = ["run", `best validation score, ${unit} per character`, "of", "last validation", "last training", "model", "parameters"];
  names.push("updates", "read", "time", "read per second, median", "state");
  const texts = [...new Set(runs.map(({ scoredOn }) => scoredOn))];
  const byText = runs.toSorted((a, b) => texts.indexOf(a.scoredOn) - texts.indexOf(b.scoredOn));
  const rows = byText.map((run) => {
    const { scores } = run;
    return [
      runHeading(run, "row"),
      figure(scoreText(unit, scores.best_nats), isBest(run, runs) ? "best" : ""),
      cell(run.scoredOn ?? "—"),
      figure(scoreText(unit, scores.last_nats)),
      figure(scoreText(unit, scores.train_nats)),
      cell(run.model ?? "—"),
      figure(whole(scores.parameters)),
      figure(whole(scores.step)),
      figure(scores.chars === null ? "—" : `${compact(scores.chars)} characters`),
      figure(duration(scores.elapsed_s)),
      figure(whole(scores.chars_per_s)),
      cell(STATES[scores.state] ?? scores.state),
    ];
  });
  fillTable(table, names.map((name) => heading(name)), rows);
}

/** Whether no run with a score of the same unseen text has a better one, and another has one at all. */
export function isBest({ scoredOn, isUnseen, scores }, runs) {
  const all = runs.filter((run) => run.scoredOn === scoredOn && run.scores.best_nats !== null);
  const least = Math.min(...all.map((run) => run.scores.best_nats));
  return isUnseen && all.length > 1 && scores.best_nats === least;
}

/** Options by run; null where a run has no such option. */
export function fillSettings(table, runs, settings) {
  const rows = settings.map(({ key, values }) => [optionHeading(key), ...values.map((value) => cell(value ?? "—"))]);
  fillTable(table, [heading("option"), ...runs.map((run) => runHeading(run, "col"))], rows);
  settings.forEach(({ differs }, number) => table.tBodies[0].rows[number].classList.toggle("differs", differs));
}

/** Lines about runs: what happened, what is missing. */
export function fillNotes(list, runs) {
  const line = (run, text) => element("li", {}, swatch(run), element("b", { textContent: ` ${run.name} ` }), text);
  const lines = runs.flatMap((run) => [
    ...run.rollbacks.map(({ text, at }) => line(run, `update ${whole(at.step)}: ${text}`)),
    ...run.faults.map((text) => line(run, text)),
  ]);
  list.replaceChildren(...lines);
}
