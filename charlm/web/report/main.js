// The page of charlm report.

import { byId } from "../shared/elements.js";
import { loadData } from "./data.js";
import { showRuns } from "./show.js";

async function start() {
  const data = await loadData();
  const [only, ...others] = data.runs;
  byId("name").textContent = others.length ? `${data.runs.length} runs` : only.name;
  byId("facts").textContent = [others.length ? "" : only.model, `charlm ${data.version}`].filter(Boolean).join(" · ");
  showRuns(data);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("facts").textContent = `This page could not be read: ${error.message}`;
  throw error;
});
