// One passage under all kinds: shaded by surprise, or by a unit; and what each writes.

import { signedShade } from "../look/colors.js";
import { choice } from "../report/choice.js";
import { runClass, swatch } from "../report/data.js";
import { shadedSpans, shadedText, textBox } from "../report/samples.js";
import { element } from "../shared/elements.js";

function article(run, ...children) {
  return element("article", { className: runClass(run) }, element("h3", {}, swatch(run), ` ${run.name}`), ...children);
}

/** A text of each run, in their order, shaded by surprise. */
export function fillTexts(box, runs, texts, title) {
  box.replaceChildren(...runs.map((run, at) => article(run, textBox(`${title}: ${run.name}`, ...shadedText(texts[at])))));
}

/** The text of each run shaded by one of its units, which are in the order of the runs too. */
export function fillUnits(box, runs, texts, units) {
  box.replaceChildren(...runs.map((run, at) => article(run, ...unitsOf(run, texts[at].text, units[at]))));
}

function unitsOf(run, passage, units) {
  if (!units.length) return [element("p", { className: "quiet", textContent: "No unit goes with a feature of the text." })];
  const names = element("div", { className: "names" });
  names.setAttribute("role", "radiogroup");
  names.setAttribute("aria-label", `Units of ${run.name}`);
  const says = element("p", { className: "quiet" });
  const box = textBox(`The passage, shaded by a unit of ${run.name}`);
  choice(names, units.map(({ feature }, number) => [String(number), feature]), "0", (number) => {
    const { layer, state, unit, feature, correlation, meaning, shades } = units[number];
    const [called] = meaning;
    const strength = correlation.toFixed(2).replace("-", "−");
    says.textContent = `${state} ${unit}${called ? ` (${called})` : ""}, layer ${layer}: correlation ${strength} with “${feature}”`;
    box.replaceChildren(...shadedSpans(passage, (index) => signedShade(shades[index] / 127)));
  });
  return [names, says, box];
}
