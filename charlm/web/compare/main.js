// The page of charlm compare.

import { loadData, unpackedAll, unpackedTexts } from "../report/data.js";
import { showRuns } from "../report/show.js";
import { byId } from "../shared/elements.js";
import { unpackArray } from "../shared/unpack.js";
import { fillGradients } from "./gradients.js";
import { fillTexts, fillUnits } from "./passages.js";
import { comparisonStory, fillComparison } from "./table.js";

async function start() {
  const data = await loadData();
  const [passages, continued] = await Promise.all([data.passages, data.continued].map(unpackedTexts));
  const unpackedUnits = (units) =>
    Promise.all(units.map(async (unit) => ({ ...unit, shades: await unpackArray(unit.shades) })));
  const units = await Promise.all(data.units.map(unpackedUnits));
  const gradients = await Promise.all(data.gradients.map(unpackedAll));
  byId("name").textContent = `${data.runs.length} kinds of cells compared`;
  byId("facts").textContent = `charlm ${data.version}`;
  byId("story").textContent = comparisonStory(data);
  for (const node of document.querySelectorAll(".symbol")) node.textContent = data.symbol;
  fillComparison(byId("comparison"), data);
  fillGradients(byId("gradients"), data.runs, gradients, data.symbol);
  showRuns(data);
  fillTexts(byId("passages"), data.runs, passages, "The passage");
  fillTexts(byId("continued"), data.runs, continued, "The beginning, continued");
  fillUnits(byId("units"), data.runs, passages, units);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("facts").textContent = `This page could not be read: ${error.message}`;
  throw error;
});
