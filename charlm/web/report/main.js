// The page of runs, and of a comparison.

import { byId, showPage } from "../shared/elements.js";
import { whole } from "../shared/numbers.js";
import { showCharts } from "./charts.js";
import { comparisonStory, openComparison } from "./comparison.js";
import { fillNotes, fillScores, fillSettings, isBest } from "./tables.js";
import { Samples } from "./texts.js";

/** What the page shows, for those who meet it for the first time. */
function reportStory(runs) {
  const texts = new Set(runs.map(({ text }) => text));
  const text = (texts.size === 1 && runs[0].text) || "a text";
  const [learners, them] = runs.length === 1 ? ["A network", "it"] : [`${runs.length} networks`, "them"];
  const score = `Score: how much the text surprised ${them}; lower is better.`;
  return `${learners} learned to guess every next character of ${text}. ${score}`;
}

function showSettings(runs, settings) {
  const known = runs.filter((run) => settings.some(({ values }) => values[run.number] !== null));
  const listed = settings.map((each) => ({ ...each, values: known.map(({ number }) => each.values[number]) }));
  const differing = listed.filter(({ differs }) => differs);
  fillSettings(byId("differing"), known, differing);
  fillSettings(byId("settings"), known, listed);
  byId("differing").hidden = !differing.length;
  byId("all-settings").hidden = !known.length;
  const differ = `${whole(differing.length)} of ${whole(listed.length)} options differ.`;
  byId("same").textContent = differing.length ? differ : known.length > 1 ? "The runs have the same settings." : "";
}

showPage((data) => {
  const { comparison } = data;
  const runs = data.runs.map((run, number) => ({ ...run, number }));
  const [only, ...others] = runs;
  byId("name").textContent = comparison
    ? `${comparison.rows.length} kinds of cells compared`
    : others.length
      ? `${runs.length} runs`
      : only.name;
  byId("facts").textContent = [others.length ? "" : only.model, `charlm ${data.version}`].filter(Boolean).join(" · ");
  byId("story").textContent = comparison ? comparisonStory(comparison, runs.length) : reportStory(runs);
  for (const node of document.querySelectorAll(".of-runs")) node.hidden = Boolean(comparison);
  if (comparison && others.length >= comparison.rows.length) byId("scores").closest("section").hidden = false; // of each seed
  for (const node of document.querySelectorAll(".of-comparison")) node.hidden = !comparison;
  const bold = runs.some((run) => isBest(run, runs)) ? "Bold: the best of the runs that are scored on the same text. " : "";
  byId("ranked").textContent = `${bold}${data.apart}`;
  fillNotes(byId("notes"), runs);
  const samples = new Samples(runs);
  const onShown = comparison ? openComparison(runs.slice(0, comparison.rows.length), comparison) : (shows) => samples.show(shows);
  const listed = comparison ? runs.toSorted((a, b) => a.color - b.color || a.dash - b.dash) : runs; // seeds beside their kind
  showCharts(listed, onShown, (unit) => fillScores(byId("scores"), listed, unit));
  showSettings(listed, data.settings);
});
