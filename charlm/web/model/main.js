// Puts the page together.

import { byId } from "../shared/elements.js";
import { story } from "../shared/story.js";
import { whole } from "../look/data.js";
import { CompleteTab } from "./complete.js";
import { openCopies } from "./copies.js";
import { openModel } from "./engine.js";
import { ScoreTab } from "./score.js";
import { Vocabulary } from "./vocabulary.js";
import { WriteTab } from "./write.js";

const FIRST_SEED = 1; // of the text that is there when the page opens

async function start() {
  const data = JSON.parse(byId("data").textContent);
  tellAbout(data);
  const [model, copies] = await Promise.all([openModel(data.model), openCopies(data.copies)]);
  const vocabulary = new Vocabulary(data.vocabulary);
  const shared = { data, model, vocabulary, copies };
  const write = new WriteTab(shared);
  const complete = new CompleteTab(shared);
  new ScoreTab(shared);
  byId("backend").textContent = `Runs in this browser (${model.backend}); nothing is sent anywhere.`;
  followTabs((name) => name === "complete" && complete.update());
  document.documentElement.dataset.ready = "yes";
  write.write(FIRST_SEED);
}

function tellAbout(data) {
  byId("name").textContent = data.name;
  const drawn = `every next ${data.symbol} is drawn from its guesses`;
  byId("story").textContent = `${story(data)} It writes: ${drawn}.`;
  const facts = [
    data.kind,
    `${whole(data.parameters)} parameters`,
    data.step ? `${whole(data.step)} steps` : "",
    scoreOf(data),
    data.precision,
  ];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  for (const name of document.querySelectorAll(".symbol")) name.textContent = data.symbol;
  if (!data.copies) return;
  const { covered, total, window, chance } = data.copies;
  const extent = covered === total ? `all ${whole(total)}` : `the first ${whole(covered)} of ${whole(total)}`;
  byId("copies-note").textContent =
    `Underlined: ${window} ${data.symbol}s or more in a row that stand in the training text (${extent} ${data.symbol}s of ` +
    `it are known here). One of ${whole(Math.round(1 / Math.max(chance, 1e-9)))} stretches of ${window} that are new ` +
    `is underlined by chance; of longer ones, far fewer.`;
}

/** The score of the run at this checkpoint; if it is not known, that of a part of the text. */
function scoreOf({ validNats, nats, scored, symbol }) {
  const score = (value) => `${(value / Math.LN2).toFixed(3)} bits per ${symbol}`;
  if (validNats) return `${score(validNats)} of validation text`;
  return nats ? `${score(nats)} of ${whole(scored)} of validation text` : "";
}

/** Tabs by click and by arrow keys; onChoice(name). */
function followTabs(onChoice) {
  const tabs = [...byId("tabs").children];
  const show = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      byId(`${tab.value}-panel`).hidden = tab !== chosen;
    }
    onChoice(chosen.value);
  };
  for (const tab of tabs) tab.addEventListener("click", () => show(tab));
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    show(next);
    next.focus();
  });
}

start().catch((error) => {
  byId("facts").textContent = `This page could not be read: ${error.message}`;
  throw error;
});
