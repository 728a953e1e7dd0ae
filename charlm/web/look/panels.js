// The cards beside the text: hardest words, memory, copies, and the comparison.

import { element, svg } from "../shared/elements.js";
import { bitsAt, excerpt } from "./data.js";

function jump(text, detail, go) {
  return element(
    "li",
    {},
    element(
      "button",
      { type: "button", onclick: go },
      element("span", { className: "what", dir: "auto", textContent: text }),
      element("span", { className: "number", textContent: detail }),
    ),
  );
}

/** A list of stretches that lead into the text. */
export function fillStretches(list, characters, stretches, unit, go) {
  list.replaceChildren(
    ...stretches.map(([start, length, amount]) =>
      jump(excerpt(characters, start, length), unit(amount, length), () => go(start, length)),
    ),
  );
}

export const tenths = (bits) => bits.toFixed(1);

/** The loss of each model by length of context, as curves with a sentence for those who cannot see them. */
export function fillMemory(box, models, symbol) {
  const [{ memory: first }] = models;
  const [width, height, left, bottom, top] = [320, 170, 34, 30, 12];
  const bits = models.flatMap(({ memory }) => [...memory.curve.map(([, value]) => value), memory.whole]);
  const high = Math.max(...bits);
  const low = Math.max(0, Math.min(...bits) - 0.1 * (high - Math.min(...bits)));
  const x = (index) => left + (index * (width - left - 14)) / Math.max(1, first.curve.length - 1);
  const y = (value) => top + ((high - value) * (height - top - bottom)) / Math.max(high - low, 1e-9);
  const sentences = models.map(({ name, memory }) =>
    models.length > 1 ? `${name}: ${memorySentence(memory, symbol)}` : memorySentence(memory, symbol),
  );
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": sentences.join(" ") });
  models.forEach(({ memory }, turn) => {
    // The colors are those of the comparison: blue for the first of two.
    const sign = models.length > 1 && turn === 0 ? "negative" : "positive";
    const level = y(memory.whole);
    const other = models[1 - turn]?.memory.whole;
    const below = !(memory.whole > other || (memory.whole === other && turn === 0)); // so the two do not overprint
    picture.append(
      svg("line", { x1: left, x2: width, y1: level, y2: level, class: `whole ${sign}` }),
      svg("text", { x: width - 2, y: level + (below ? 13 : -5), class: "label end" }, `whole text: ${memory.whole.toFixed(2)}`),
      svg("polyline", {
        points: memory.curve.map(([, value], index) => `${x(index)},${y(value)}`).join(" "),
        class: `curve ${sign}`,
      }),
    );
    memory.curve.forEach(([length, value], index) => {
      const dot = svg("circle", { cx: x(index), cy: y(value), r: 3.5, class: `dot ${sign}` });
      dot.append(svg("title", {}, `${length} ${symbol}s: ${value.toFixed(2)} bits`));
      picture.append(dot);
    });
  });
  first.curve.forEach(([length], index) => {
    picture.append(svg("text", { x: x(index), y: height - 14, class: "label middle" }, String(length)));
  });
  for (const value of [high, low])
    picture.append(svg("text", { x: left - 6, y: y(value) + 4, class: "label end" }, value.toFixed(1)));
  picture.append(
    svg("text", { x: (left + width) / 2, y: height - 1, class: "label middle" }, `${symbol}s of context`),
  );
  const signs = models.length > 1 ? [swatch("negative"), swatch("positive")] : [""];
  box.replaceChildren(picture, ...sentences.map((text, turn) => element("p", {}, signs[turn], text)));
}

/** How far back the model looks: the context after which less than 0.02 bits are left to gain. */
export function memorySentence(memory, symbol) {
  const best = Math.min(...memory.curve.map(([, value]) => value));
  const [enough, bits] = memory.curve.find(([, value]) => value <= best + 0.02);
  const [first, alone] = memory.curve[0];
  return (
    `From ${alone.toFixed(2)} bits with ${first} ${symbol} of context to ${bits.toFixed(2)} with ${enough}; ` +
    `longer contexts help by less than 0.02 bits.`
  );
}

/** 1 for each character that is in a copied stretch. */
export function copiedMarks(length, stretches) {
  const marks = new Uint8Array(length);
  for (const [start, size] of stretches) marks.fill(1, start, start + size);
  return marks;
}

export function fillCopied(list, note, { characters, copied, symbol }, go) {
  const longest = [...copied].sort((a, b) => b[1] - a[1]).slice(0, 12);
  fillStretches(list, characters, longest, (_, length) => `${length} ${symbol}s`, go);
  const total = copied.reduce((sum, [, length]) => sum + length, 0);
  const share = ((100 * total) / characters.length).toFixed(1);
  note.textContent = `Stretches of 20 ${symbol}s or more that stand in the training text word for word: ${copied.length}, ${share} % of this text.`;
}

/** Difference in bits, positive where the second model is more surprised. */
export function advantage(data, index) {
  return bitsAt(data.compare.reading, index) - bitsAt(data.reading, index);
}

export function fillCompared(box, data, go) {
  let [first, second] = [0, 0];
  data.characters.forEach((_, index) => {
    const bits = advantage(data, index);
    if (bits > 0) first++;
    else if (bits < 0) second++;
  });
  const share = (count) => `${((100 * count) / Math.max(1, first + second)).toFixed(0)} %`;
  const list = (stretches) => {
    if (!stretches.length) return element("p", { className: "quiet", textContent: "None by more than half a bit." });
    const node = element("ol", { className: "chips" });
    fillStretches(node, data.characters, stretches, (bits) => `−${tenths(bits)}`, go);
    return node;
  };
  box.replaceChildren(
    element(
      "p",
      {},
      swatch("negative"),
      `${data.name}, ${data.kind}: ${data.bits.toFixed(3)} bits per ${data.symbol}; better in ${share(first)} of them.`,
    ),
    element(
      "p",
      {},
      swatch("positive"),
      `${data.compare.name}, ${data.compare.kind}: ${data.compare.bits.toFixed(3)} bits; better in ${share(second)}.`,
    ),
    element("h3", { textContent: `Words that ${data.name} knows better, bits saved` }),
    list(data.compare.words[0]),
    element("h3", { textContent: `Words that ${data.compare.name} knows better, bits saved` }),
    list(data.compare.words[1]),
  );
}

function swatch(kind) {
  return element("span", { className: `swatch ${kind}` });
}
