// How much of the gradient is left so many steps back, for all kinds in one picture.

import { runClass, swatch } from "../report/data.js";
import { short } from "../report/numbers.js";
import { extent, makeScale, ticksOf } from "../report/scale.js";
import { element, svg } from "../shared/elements.js";

const DECADES = 8; // below the largest value; smaller ones leave the chart
const [WIDTH, HEIGHT] = [400, 210];
const ROOM = { left: 44, right: WIDTH - 12, top: 10, bottom: HEIGHT - 34 };

/** gradients: of each run { trained, untrained }, what is left 1, 2, … steps back. */
export function fillGradients(box, runs, gradients, symbol) {
  const all = gradients.flatMap(({ trained, untrained }) => [trained, untrained]);
  const [least, most] = extent(all, true) ?? [0.1, 1];
  const y = makeScale(Math.max(Math.min(least, most / 10), most / 10 ** DECADES), most, ROOM.bottom, ROOM.top, true);
  const x = makeScale(1, Math.max(...all.map(({ length }) => length), 2), ROOM.left, ROOM.right, false);
  const told = runs.map(({ name }, at) => {
    const { trained, untrained } = gradients[at];
    const [now, before] = [trained, untrained].map((left) => short(Number(left.at(-1).toPrecision(2))));
    return `${name} ${now} trained, ${before} untrained`;
  });
  const label = `What is left of the gradient ${x.high} ${symbol}s back: ${told.join("; ")}.`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...axes(x, y, symbol));
  for (const state of ["untrained", "trained"]) {
    runs.forEach((run, at) => {
      const line = svg("path", { d: pathOf(gradients[at][state], x, y), class: `line ${runClass(run)} ${state}` });
      line.append(svg("title", {}, `${run.name}, ${state}`));
      picture.append(line);
    });
  }
  const names = runs.map((run) => element("span", {}, swatch(run), ` ${run.name} `));
  box.replaceChildren(element("p", { className: "kinds" }, ...names), picture);
}

function axes(x, y, symbol) {
  const nodes = ticksOf(y, 4).flatMap((value) => {
    const at = y.pixel(value);
    const line = svg("line", { x1: ROOM.left, x2: ROOM.right, y1: at, y2: at, class: "grid" });
    return [line, svg("text", { x: ROOM.left - 6, y: at, dy: "0.35em", class: "label end" }, short(value))];
  });
  for (const value of [1, ...ticksOf(x, 5)]) {
    nodes.push(svg("text", { x: x.pixel(value), y: ROOM.bottom + 15, class: "label middle" }, String(value)));
  }
  nodes.push(svg("text", { x: ROOM.right, y: HEIGHT - 4, class: "label end" }, `${symbol}s back`));
  return nodes;
}

/** The line down to where it leaves the chart. */
function pathOf(left, x, y) {
  const end = left.findIndex((value) => !(value >= y.low));
  const inside = Array.from(end < 0 ? left : left.subarray(0, end));
  const points = inside.map((value, index) => `${x.pixel(index + 1).toFixed(1)} ${y.pixel(value).toFixed(1)}`);
  if (end > 0) points.push(`${x.pixel(end + 1).toFixed(1)} ${y.pixel(y.low).toFixed(1)}`);
  return points.length ? `M${points.join("L")}` : "";
}
