// The cards beside the text: hardest words, memory, gradients, and the comparison of two models.

import { byId, element, oneStop } from "../shared/elements.js";
import { linesChart } from "../shared/lines.js";
import { bitsAt } from "../shared/prediction.js";
import { excerpt } from "../shared/printable.js";

/** Of two models, the first is blue: those are the colors of the comparison. */
const signOf = (models, number) => (models.length > 1 && number === 0 ? "negative" : "positive");

function paragraphs(models, sentence) {
  return models.map((model, number) => {
    if (models.length === 1) return element("p", { textContent: sentence(model) });
    const swatch = element("span", { className: `swatch ${signOf(models, number)}` });
    return element("p", {}, swatch, `${model.name}: ${sentence(model)}`);
  });
}

/** A list of words, [start, length, bits], that lead into the text. */
export function fillWords(list, characters, words, go) {
  const items = words.map(([start, length, bits]) => {
    const word = excerpt(characters.slice(start, start + length));
    const what = element("span", { className: "what", dir: "auto", textContent: word });
    const number = element("span", { className: "number", textContent: bits.toFixed(1) });
    const onclick = () => go(start);
    return element("li", {}, element("button", { type: "button", onclick }, what, number));
  });
  list.replaceChildren(...items);
  if (items.length) oneStop(list);
}

/** How far back a model looks: the context after which less is left to gain. */
function memorySentence({ curve, least, whole }, symbol) {
  const [first, alone] = curve[0];
  const [, bits] = curve.find(([length]) => length === least);
  return (
    `From ${alone.toFixed(2)} bits per ${symbol} with ${first} ${symbol} of context to ${bits.toFixed(2)} with ${least}; longer ` +
    `contexts help by less than 0.02 bits. Dashed: ${whole.toFixed(3)}, the mean with the whole text before.`
  );
}

/** The surprise of each model by length of context. */
export function fillMemory(models, symbol) {
  const lines = models.flatMap(({ name, memory: { curve, whole } }, number) => [
    { name, className: signOf(models, number), points: curve },
    {
      name: `${name}, the whole text`,
      className: `untrained ${signOf(models, number)}`,
      points: [curve[0], curve.at(-1)].map(([length]) => [length, whole]),
    },
  ]);
  const told = paragraphs(models, ({ memory }) => memorySentence(memory, symbol));
  const words = told.map(({ textContent }) => textContent).join(" ");
  byId("memory").replaceChildren(linesChart(lines, { title: "Memory, bits", words, label: `${symbol}s of context`, logX: true }), ...told);
}

/** How far a gradient reaches, in words; norms: by steps back. */
function normsSentence(norms, symbol) {
  const faded = norms.findIndex((norm) => norm / norms[0] < 0.01);
  if (norms[0] === 0) return "no gradient flows back";
  if (faded > 0) return `below 1% of its first value ${faded + 1} ${symbol}s back`;
  const end = norms.at(-1) / norms[0];
  const share = end >= 2 ? `${end.toPrecision(2)} times` : `${(100 * end).toPrecision(2)}% of`;
  return `${share} its first value ${norms.length} ${symbol}s back`;
}

/** The norms of gradients with respect to a layer's input, by steps back: a chart for each layer; untrained models are dashed. */
export function fillGradients(models, symbol) {
  const layers = Math.max(...models.map(({ gradients }) => gradients.trained.length));
  for (let layer = 0; layer < layers; layer++) {
    const lines = models.flatMap(({ name, gradients }, number) =>
      ["untrained", "trained"].map((state) => ({
        name: `${name}, ${state}`,
        className: `${state} ${signOf(models, number)}`,
        points: (gradients[state][layer] ?? []).map((norm, index) => [index + 1, norm]),
      })),
    );
    const sentence = ({ gradients }) =>
      ["trained", "untrained"].map((state) => `${state}: ${normsSentence(gradients[state][layer] ?? [0], symbol)}`).join("; ");
    const told = paragraphs(models, (model) => `${sentence(model)}.`);
    const words = `Layer ${layer + 1}. ${told.map(({ textContent }) => textContent).join(" ")}`;
    if (layers > 1) byId("gradients").append(element("h3", { textContent: `Layer ${layer + 1}` }));
    const title = `Gradients, layer ${layer + 1}`;
    byId("gradients").append(linesChart(lines, { title, words, label: `${symbol}s back`, logY: true }), ...told);
  }
}

/** Difference in bits, positive where the second model is more surprised. */
export const advantage = ({ compare, reading }, index) => bitsAt(compare.reading, index) - bitsAt(reading, index);

/** Where each of two models is better. */
export function fillCompared(data, go) {
  const models = [data, data.compare];
  const better = [0, 0];
  data.characters.forEach((_, index) => {
    const bits = advantage(data, index);
    if (bits) better[bits > 0 ? 0 : 1]++;
  });
  const share = (model) => ((100 * better[models.indexOf(model)]) / Math.max(1, better[0] + better[1])).toFixed(0);
  const told = paragraphs(models, (model) => `${[model.kind, model.weights].filter(Boolean).join(", ")}, ${model.bits.toFixed(3)} bits; better in ${share(model)}% of the ${data.symbol}s.`);
  const lists = models.flatMap(({ name }, number) => {
    const list = element("ol", { className: "chips" });
    fillWords(list, data.characters, data.compare.words[number], go);
    const none = element("p", { className: "quiet", textContent: "None by more than half a bit." });
    return [element("h3", { textContent: `Words that ${name} knows better, bits saved` }), list.children.length ? list : none];
  });
  const seen = element("p", { className: "quiet", textContent: `${data.seen}.` });
  byId("compared").replaceChildren(seen, ...told, ...lists);
}
