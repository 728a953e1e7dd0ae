// What flows back: the norm of the gradient by steps back, and what led to the prediction of one character.

import { shadeColor, signedShade } from "./colors.js";
import { byId, element, svg } from "../shared/elements.js";
import { nameOf } from "./data.js";
import { unpackArray } from "../shared/unpack.js";

const DECADES = 8; // below the largest norm; smaller ones leave the chart
const STRONGEST = 5; // influences that are listed

/** Add the view of influences and the card of gradients, if the page has them. */
export async function addGradients(data, views, text, strip) {
  if (!data.gradients) return;
  const { reach, values: packedValues } = data.gradients.influence;
  const values = await unpackArray(packedValues);
  const influenceAt = (index) => {
    const back = text.selected - index;
    return back >= 1 && back <= reach ? values[text.selected * reach + back - 1] / 127 : 0;
  };
  const list = element("ol", { className: "chips" });
  const label = "Orange made the selected character likelier, blue less likely";
  views.influence = {
    label: "Influence",
    signed: true,
    value: () => influenceAt,
    shade: signedShade,
    words: ["less likely", "likelier"],
    says: "Influence on the selected character over the text",
    color: `The color shows what led to the guess at the box. ${label}.`,
  };
  const tell = text.onSelect;
  text.onSelect = (index) => {
    tell(index);
    list.replaceChildren(...strongestBefore(data.characters, index, influenceAt, reach));
    const button = byId("views").querySelector("[value=influence]");
    if (button?.getAttribute("aria-checked") !== "true") return;
    // Cells keep their place, so that a click on one that was just pointed at arrives.
    for (const cell of text.rows.querySelectorAll("[data-index]")) {
      cell.style.backgroundColor = shadeColor(signedShade(influenceAt(Number(cell.dataset.index))));
    }
    strip.show(influenceAt, true);
  };
  const card = element(
    "section",
    { className: "card", id: "gradients-card" },
    element("h2", { textContent: "Gradients" }),
    element("p", { className: "quiet about", textContent: "The norm of the gradient of one loss with respect to the memory before it. It fades or grows with every step back. Dashed: untrained." }),
    element("div", { id: "gradients" }),
    element("h3", { textContent: `Influences on this ${data.symbol}` }),
    list,
    element("p", { className: "quiet", textContent: `${label}. Relative to the strongest of ${reach} ${data.symbol}s.` }),
  );
  byId("memory").closest(".card").after(card);
  const models = data.compare ? [data, data.compare] : [data];
  drawNorms(card.querySelector("#gradients"), models, data.symbol);
}

/** The characters with the most influence on the one at `selected`, the strongest first. */
function strongestBefore(characters, selected, influenceAt, reach) {
  const near = [];
  for (let index = Math.max(0, selected - reach); index < selected; index++) {
    if (influenceAt(index) !== 0) near.push(index);
  }
  near.sort((a, b) => Math.abs(influenceAt(b)) - Math.abs(influenceAt(a)));
  return near.slice(0, STRONGEST).map((index) => {
    const amount = influenceAt(index).toFixed(2).replace("-", "−");
    return element(
      "li",
      {},
      element("span", { className: "what", textContent: `${nameOf(characters[index])}, ${selected - index} back` }),
      element("span", { className: "number", textContent: ` ${amount}` }),
    );
  });
}

/** Norms over steps back, on a logarithmic scale: a chart for each layer; trained models drawn through, others dashed. */
function drawNorms(box, models, symbol) {
  const layers = Math.max(...models.map(({ gradients }) => gradients.trained.length));
  const all = models.flatMap(({ gradients }) => [gradients.trained, gradients.untrained].flat(2));
  const high = Math.ceil(Math.log10(Math.max(...all, 1e-30)));
  const low = Math.max(high - DECADES, Math.floor(Math.log10(Math.min(...all.filter((norm) => norm > 0), 1))));
  for (let layer = 0; layer < layers; layer++) {
    const curves = models.flatMap(({ name, gradients }, turn) =>
      ["trained", "untrained"].flatMap((state) => {
        const norms = gradients[state][layer];
        const sign = models.length > 1 && turn === 0 ? "negative" : "positive";
        return norms ? [{ name: models.length > 1 ? `${name}, ${state}` : state, state, norms, sign }] : [];
      }),
    );
    const sentences = curves.map(({ name, norms }) => `${name}: ${normsSentence(norms, symbol)}`);
    const signs = curves.map(({ sign }) => (models.length > 1 ? element("span", { className: `swatch ${sign}` }) : ""));
    const picture = normsChart(curves, low, Math.max(high, low + 1), symbol, `Layer ${layer + 1}. ${sentences.join(" ")}`);
    if (layers > 1) box.append(element("h3", { textContent: `Layer ${layer + 1}` }));
    box.append(picture, ...sentences.map((sentence, turn) => element("p", {}, signs[turn], sentence)));
  }
}

function normsChart(curves, low, high, symbol, label) {
  const [width, height, left, bottom, top] = [320, 170, 34, 30, 12];
  const steps = Math.max(...curves.map(({ norms }) => norms.length));
  const x = (back) => left + ((back - 1) * (width - left - 14)) / Math.max(1, steps - 1);
  const y = (exponent) => top + ((high - exponent) * (height - top - bottom)) / (high - low);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (let exponent = high; exponent >= low; exponent -= Math.ceil((high - low) / 4)) {
    const text = Math.abs(exponent) < 3 ? String(10 ** exponent) : `1e${exponent}`;
    picture.append(svg("text", { x: left - 6, y: y(exponent) + 4, class: "label end" }, text.replace("-", "−")));
  }
  for (const back of new Set([1, Math.round(steps / 2), steps])) {
    picture.append(svg("text", { x: x(back), y: height - 14, class: "label middle" }, String(back)));
  }
  picture.append(svg("text", { x: (left + width) / 2, y: height - 1, class: "label middle" }, `${symbol}s back`));
  for (const { name, state, norms, sign } of curves) {
    const end = norms.findIndex((norm) => !(Math.log10(norm) >= low));
    const inside = end < 0 ? norms : norms.slice(0, end);
    const points = inside.map((norm, index) => `${x(index + 1)},${y(Math.log10(norm))}`);
    if (end > 0) points.push(`${x(end + 1)},${y(low)}`);
    const line = svg("polyline", { points: points.join(" "), class: `curve ${state === "untrained" ? "whole " : ""}${sign}` });
    line.append(svg("title", {}, name));
    picture.append(line);
  }
  return picture;
}

/** How far a gradient reaches, in words. */
export function normsSentence(norms, symbol) {
  const share = (index) => norms[index] / norms[0];
  const last = norms.length - 1;
  const faded = norms.findIndex((_, index) => share(index) < 0.01);
  if (norms[0] === 0) return `no gradient flows back.`;
  if (faded > 0) return `below 1 % of its first value ${faded + 1} ${symbol}s back.`;
  const end = share(last);
  return `${end >= 2 ? `${end.toPrecision(2)} times` : `${(100 * end).toPrecision(2)} % of`} its first value ${last + 1} ${symbol}s back.`;
}
