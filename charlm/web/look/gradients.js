// What flows back: the norm of the gradient by steps back.

import { element, svg } from "../shared/elements.js";

const DECADES = 8; // below the largest norm; smaller ones leave the chart

/** Norms over steps back, on a logarithmic scale: a chart for each layer; trained models drawn through, others dashed. */
export function drawNorms(box, models, symbol) {
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
