// The page of charlm report.

import { byId } from "../shared/elements.js";
import { loadData, unpackedTexts } from "./data.js";
import { Samples } from "./samples.js";
import { showRuns } from "./show.js";
import { fillNotes, fillScores } from "./tables.js";

/** What the page shows, for those who meet it for the first time. */
function reportStory({ runs, settings }) {
  const all = (key, value) => settings.some((each) => each.key === key && each.values.every((own) => own === value));
  const guessed = all("data.level", "byte") ? "byte" : "character";
  const texts = [...new Set(runs.map(({ text }) => text))];
  const text = texts.length === 1 ? (texts[0] ?? "a text") : "a text";
  const [learners, them] = runs.length === 1 ? ["A network", "it"] : [`${runs.length} networks`, "them"];
  return `${learners} learned to guess every next ${guessed} of ${text}. Loss: how much the text surprised ${them}; lower is better.`;
}

async function start() {
  const data = await loadData();
  for (const run of data.runs) run.samples = await unpackedTexts(run.samples);
  const [only, ...others] = data.runs;
  byId("name").textContent = others.length ? `${data.runs.length} runs` : only.name;
  byId("facts").textContent = [others.length ? "" : only.model, `charlm ${data.version}`].filter(Boolean).join(" · ");
  byId("story").textContent = reportStory(data);
  byId("ranked").hidden = new Set(data.runs.map(({ ranked }) => ranked)).size < 2;
  fillNotes(byId("notes"), data.runs);
  const samples = new Samples(data.runs);
  showRuns(data, (hidden) => samples.show(hidden), (unit) => fillScores(byId("scores"), data.runs, unit));
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("facts").textContent = `This page could not be read: ${error.message}`;
  throw error;
});
