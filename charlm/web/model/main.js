// Puts the page together.

import { byId, choice, showPage } from "../shared/elements.js";
import { story, whole } from "../shared/numbers.js";
import { CompleteTab } from "./complete.js";
import { openModel } from "./engine.js";
import { ScoreTab } from "./score.js";
import { Vocabulary } from "./vocabulary.js";
import { WriteTab } from "./write.js";

const FIRST_SEED = 1; // of the text that is there when the page opens

async function show(data) {
  tellAbout(data);
  const model = await openModel(data.model);
  const vocabulary = new Vocabulary(data.vocabulary);
  const symbols = Array.from({ length: model.size }, (_, id) => vocabulary.name(id));
  const shared = { data, model, vocabulary, symbols };
  const write = new WriteTab(shared);
  const complete = new CompleteTab(shared);
  const score = new ScoreTab(shared);
  const stories = {
    write: `It writes: every next ${data.symbol} is drawn from its guesses.`,
    complete: "It guesses how your text goes on.",
    score: "It reads your text; orange: it was surprised.",
  };
  const tabs = [["write", "Write"], ["complete", "Complete"], ["score", "Score"]];
  choice(byId("tabs"), tabs, "write", (chosen) => {
    for (const [name] of tabs) byId(`${name}-panel`).hidden = name !== chosen;
    byId("story").textContent = `${story(data)} ${stories[chosen]}`;
    if (chosen === "complete") complete.update();
    if (chosen === "score") score.open();
  });
  write.write(FIRST_SEED);
}

function tellAbout(data) {
  byId("name").textContent = data.name;
  const updates = data.step ? `${whole(data.step)} updates` : "";
  const score = data.score ? `${data.score.bits.toFixed(3)} bits per character (${data.score.of})` : "";
  const facts = [data.kind, `${whole(data.parameters)} parameters`, updates, data.weights, data.precision, score];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  for (const name of document.querySelectorAll(".symbol")) name.textContent = data.symbol;
}

showPage(show);
