// The page of charlm compare.

import { loadData, unpackedAll, unpackedTexts } from "../report/data.js";
import { showRuns } from "../report/show.js";
import { byId } from "../shared/elements.js";
import { fillGradients } from "./gradients.js";
import { fillTexts } from "./passages.js";
import { comparisonStory, fillComparison } from "./table.js";

async function start() {
  const data = await loadData();
  const [passages, written] = await Promise.all([data.passages, data.written].map(unpackedTexts));
  const gradients = await Promise.all(data.gradients.map(unpackedAll));
  byId("name").textContent = `${data.runs.length} kinds of cells compared`;
  byId("facts").textContent = `charlm ${data.version}`;
  byId("story").textContent = comparisonStory(data);
  for (const node of document.querySelectorAll(".symbol")) node.textContent = data.symbol;
  fillComparison(byId("comparison"), data);
  fillGradients(byId("gradients"), data.runs, gradients, data.symbol);
  showRuns(data);
  fillTexts(byId("passages"), data.runs, passages, "The passage");
  fillTexts(byId("written"), data.runs, written, "What it writes");
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("facts").textContent = `This page could not be read: ${error.message}`;
  throw error;
});
