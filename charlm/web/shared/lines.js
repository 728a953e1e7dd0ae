// Small charts: lines over one axis.

import { element, svg } from "./elements.js";
import { short } from "./numbers.js";
import { saveButton } from "./save.js";
import { extent, makeScale, ticksOf } from "./scale.js";

const DECADES = 8; // of a logarithmic axis, below the largest value; smaller ones leave the chart
const [WIDTH, HEIGHT] = [400, 210];
const ROOM = { left: 46, right: WIDTH - 12, top: 10, bottom: HEIGHT - 34 };

/**
 * Lines, [{ name, className, points: [[x, y], …] }], and a button that saves them. title: of the file; words: what they
 * show; label: of the horizontal axis.
 */
export function linesChart(lines, { title, words, label, logX = false, logY = false }) {
  const ends = (place, log) => extent(lines.map(({ points }) => points.map((point) => point[place])), log) ?? [1, 2];
  const [first, last] = ends(0, logX);
  const [least, most] = ends(1, logY);
  const low = logY ? Math.max(Math.min(least, most / 10), most / 10 ** DECADES) : Math.max(0, 1.1 * least - 0.1 * most);
  const x = makeScale(first, Math.max(last, first + 1), ROOM.left, ROOM.right, logX);
  const y = makeScale(low, Math.max(most, low + 1e-9), ROOM.bottom, ROOM.top, logY);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words });
  for (const value of ticksOf(y, 4)) {
    const at = y.pixel(value);
    picture.append(svg("line", { x1: ROOM.left, x2: ROOM.right, y1: at, y2: at, class: "grid" }));
    picture.append(svg("text", { x: ROOM.left - 6, y: at, dy: "0.35em", class: "label end" }, short(value)));
  }
  for (const value of new Set([first, ...ticksOf(x, 5)])) {
    picture.append(svg("text", { x: x.pixel(value), y: ROOM.bottom + 15, class: "label middle" }, short(value)));
  }
  picture.append(svg("text", { x: ROOM.right, y: HEIGHT - 4, class: "label end" }, label));
  for (const { name, className, points } of lines) {
    const line = svg("path", { d: pathOf(points, x, y), class: `line ${className}` });
    line.append(svg("title", {}, name));
    picture.append(line);
  }
  return element("div", {}, picture, saveButton(title, () => ({ picture, title, lines })));
}

/** The line down to where it leaves the chart. */
function pathOf(points, x, y) {
  const out = points.findIndex(([, value]) => !(value >= y.low));
  const inside = out < 0 ? points : points.slice(0, out);
  if (out > 0) inside.push([points[out][0], y.low]);
  const pixels = inside.map(([at, value]) => `${x.pixel(at).toFixed(1)} ${y.pixel(value).toFixed(1)}`);
  return pixels.length ? `M${pixels.join("L")}` : "";
}
