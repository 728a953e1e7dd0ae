// Texts that all models read or continue, shaded by surprise: one below the other.

import { element } from "../shared/elements.js";
import { runClass, swatch } from "./data.js";
import { shadedText } from "./samples.js";

/** A card for each passage; its texts are in the order of the runs. */
export function fillPassages(box, runs, passages) {
  const cards = passages.map(({ title, texts }) => {
    const heading = element("h2", { textContent: title });
    const shown = runs.map((run) => {
      const text = element("div", { className: "sample", dir: "auto", tabIndex: 0 }, ...shadedText(texts[run.number]));
      text.setAttribute("role", "group");
      text.setAttribute("aria-label", `${title}: ${run.name}`);
      return element("article", { className: runClass(run) }, element("h3", {}, swatch(run), ` ${run.name}`), text);
    });
    return element("section", { className: "card" }, heading, element("div", { className: "texts" }, ...shown));
  });
  box.replaceChildren(...cards);
}
