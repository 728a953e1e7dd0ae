// Texts under all kinds, shaded by surprise.

import { runClass, swatch } from "../report/data.js";
import { shadedText, textBox } from "../report/samples.js";
import { element } from "../shared/elements.js";

/** A text of each run, in their order. */
export function fillTexts(box, runs, texts, title) {
  const articles = runs.map((run, at) => {
    const heading = element("h3", {}, swatch(run), ` ${run.name}`);
    return element("article", { className: runClass(run) }, heading, textBox(`${title}: ${run.name}`, ...shadedText(texts[at])));
  });
  box.replaceChildren(...articles);
}
