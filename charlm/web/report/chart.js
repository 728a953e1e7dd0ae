// A chart: one or two curves of every run over a shared axis, with a cursor, a selection by dragging, and notes.

import { element, svg } from "../shared/elements.js";
import { runClass, swatch } from "./data.js";
import { AXES, short, tickText, timeUnit } from "./numbers.js";
import { extent, makeScale, ticksOf, widened } from "./scale.js";
import { nearest, seenValues, smoothed, withNeighbors } from "./smooth.js";
import { chartWords, curveName } from "./words.js";

const MARGIN = { left: 62, right: 24, top: 10, bottom: 38 };
const DOTS = 80; // points of a curve up to which each is a dot
const SMOOTHED = 30; // points from which on a curve is smoothed
const NEAR = 0.02; // share of the axis within which the cursor finds the end of a curve
const [ROW, COLUMN, MOST_COLUMNS] = [21, 260, 3]; // the box at the cursor, in pixels
const DRAG = 6; // pixels below which a drag is a click

export class Chart {
  /** what: { id, name, unit(), log, smooth, curves: [{ split, key, dots }], value(number), text(number) }; view: what
   * all charts share, see show.js; onCursor(at, chart), onRange(range). */
  constructor(box, runs, what, view, onCursor, onRange) {
    Object.assign(this, { box, runs, what, view, onCursor, onRange });
    this.log = what.log;
    this.title = element("h3", { textContent: what.name });
    this.button = element("button", { type: "button", className: "small", textContent: "log", onclick: () => this.setLog(!this.log) });
    this.button.title = "Logarithmic axis";
    this.button.setAttribute("aria-label", `${what.name}: logarithmic axis`);
    this.svg = svg("svg", { class: "plot", "aria-hidden": "true" });
    this.tip = element("div", { className: "tip", hidden: true });
    this.area = element("div", { className: "area", tabIndex: 0 }, this.svg, this.tip);
    this.area.setAttribute("role", "application");
    this.area.setAttribute("aria-describedby", "keys");
    box.append(element("div", { className: "head" }, this.title, this.button), this.area);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.area);
  }

  listen() {
    this.area.addEventListener("pointerdown", (event) => {
      if (event.button === 0) this.dragged = [this.pixelAt(event), event.clientX];
      this.moved(event);
    });
    for (const kind of ["pointerenter", "pointermove"]) this.area.addEventListener(kind, (event) => this.moved(event));
    // A finger leaves when it is lifted; what it pointed at stays until another place is tapped.
    this.area.addEventListener("pointerleave", (event) => {
      if (!this.dragged && event.pointerType !== "touch") this.onCursor(null, this);
    });
    addEventListener("pointerdown", ({ target }) => {
      if (this.view.chart === this && !this.area.contains(target)) this.onCursor(null, this);
    });
    addEventListener("pointerup", (event) => this.released(event));
    addEventListener("pointercancel", () => this.cancelled()); // a finger that scrolls the page
  }

  pixelAt(event) {
    const { left } = this.svg.getBoundingClientRect();
    const pixel = event.clientX - left;
    return Math.max(MARGIN.left, Math.min(this.width - MARGIN.right, pixel));
  }

  moved(event) {
    if (!this.x) return;
    const pixel = this.pixelAt(event);
    this.onCursor(this.x.value(pixel), this);
    if (this.dragged && event.buttons) {
      const [first, last] = [this.dragged[0], pixel].sort((a, b) => a - b);
      this.selection.setAttribute("x", first);
      this.selection.setAttribute("width", last - first);
    }
  }

  released(event) {
    if (!this.dragged) return;
    const [start, clientX] = this.dragged;
    this.dragged = null;
    this.selection?.setAttribute("width", 0);
    if (!this.x || Math.abs(event.clientX - clientX) < DRAG) return;
    const ends = [this.x.value(start), this.x.value(this.pixelAt(event))];
    this.onRange(ends.sort((a, b) => a - b));
  }

  cancelled() {
    this.dragged = null;
    this.selection?.setAttribute("width", 0);
  }

  setLog(log) {
    this.log = log;
    this.draw();
  }

  /**
   * The curves in sight: run, split, the x and y of their points, and whether points are marked. Of a part of the axis
   * they have a point more on either side; inside: the first index within the part, and the one after the last.
   */
  collect() {
    const { axis, range, hidden, splits } = this.view;
    const curves = [];
    for (const run of this.runs) {
      for (const { split, key, dots } of this.what.curves) {
        const { rows, at, [key]: values } = run.curves[split];
        if (!rows || hidden.has(run.number) || (this.what.curves.length > 1 && !splits.has(split))) continue;
        const converted = (array) => array && Array.from(array, this.what.value);
        const [first, end] = range ? withNeighbors(at[axis], range) : [0, rows];
        const points = Object.fromEntries(
          Object.entries({ at: Array.from(at[axis]), mean: converted(values.mean), low: converted(values.low), high: converted(values.high) })
            .filter(([, array]) => array)
            .map(([name, array]) => [name, array.slice(first, end)]),
        );
        const inside = range ? [points.at[0] < range[0] ? 1 : 0, points.at.length - (points.at.at(-1) > range[1] ? 1 : 0)] : [0];
        if (points.at.length) curves.push({ run, split, dots, inside, ...points });
      }
    }
    return curves;
  }

  draw() {
    this.width = this.area.clientWidth;
    this.height = this.area.clientHeight;
    if (!this.width) return;
    this.button.setAttribute("aria-pressed", String(this.log));
    this.title.textContent = this.what.unit() ? `${this.what.name}, ${this.what.unit()}` : this.what.name;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.curves = this.collect();
    this.area.setAttribute("aria-label", chartWords(this.title.textContent, this.what, this.curves));
    const { logX, range, smooth } = this.view;
    const across = range && this.curves.length ? range : extent(this.curves.map(({ at }) => at), logX);
    this.x = null;
    if (!across) return this.drawNothing();
    const [left, right] = [MARGIN.left, this.width - MARGIN.right];
    this.x = makeScale(...widened(across, logX, 0), left, right, logX);
    for (const curve of this.curves) {
      const width = this.what.smooth && !curve.dots && curve.at.length >= SMOOTHED ? smooth / 100 : 0;
      curve.line = smoothed(curve.at.map(this.x.share), curve.mean, width);
    }
    const up = extent(this.curves.flatMap((curve) => seenValues(curve, this.x)), this.log);
    if (!up) return this.drawNothing();
    const [bottom, top] = [this.height - MARGIN.bottom, MARGIN.top];
    this.y = makeScale(...widened(up, this.log, 0.05), bottom, top, this.log);
    const clip = `inside-${this.what.id}`;
    const room = { x: left, y: top, width: right - left, height: bottom - top };
    this.selection = svg("rect", { ...room, width: 0, class: "selection" });
    this.cursor = svg("g", { class: "cursor" });
    this.svg.replaceChildren(
      svg("clipPath", { id: clip }, svg("rect", room)),
      this.drawAxes(room),
      svg("g", { "clip-path": `url(#${clip})` }, ...this.curves.flatMap((curve) => this.drawCurve(curve))),
      ...this.drawNotes(room),
      this.selection,
      this.cursor,
    );
    this.drawCursor();
  }

  drawNothing() {
    const text = svg("text", { x: this.width / 2, y: this.height / 2, class: "label middle" }, "nothing to show");
    this.svg.replaceChildren(text);
    this.tip.hidden = true;
  }

  drawAxes({ x, y, width, height }) {
    const nodes = [];
    for (const value of ticksOf(this.y, height / 45)) {
      const pixel = this.y.pixel(value).toFixed(1);
      nodes.push(svg("line", { x1: x, x2: x + width, y1: pixel, y2: pixel, class: "grid" }));
      nodes.push(svg("text", { x: x - 7, y: pixel, dy: "0.35em", class: "label end" }, short(value)));
    }
    const { axis } = this.view;
    const { size, name } = axis === "elapsed_s" ? timeUnit(this.x.high) : { size: 1, name: AXES[axis].label };
    const scaled = { low: this.x.low / size, high: this.x.high / size, log: this.x.log };
    for (const value of ticksOf(scaled, width / 70)) {
      const pixel = this.x.pixel(value * size).toFixed(1);
      nodes.push(svg("line", { x1: pixel, x2: pixel, y1: y + height, y2: y + height + 4, class: "tick" }));
      nodes.push(svg("text", { x: pixel, y: y + height + 17, class: "label middle" }, tickText(value)));
    }
    nodes.push(svg("line", { x1: x, x2: x + width, y1: y + height, y2: y + height, class: "tick" }));
    nodes.push(svg("text", { x: x + width, y: y + height + 33, class: "label end" }, name));
    return svg("g", {}, ...nodes);
  }

  drawCurve(curve) {
    const { run, split, at, mean, line, low, high, dots } = curve;
    const classes = `${split} ${runClass(run)}`;
    const nodes = [];
    if (low) nodes.push(svg("path", { d: this.band(at, low, high), class: `band ${classes}` }));
    else if (line !== mean) nodes.push(svg("path", { d: this.path(at, mean), class: `raw ${classes}` }));
    nodes.push(svg("path", { d: this.path(at, line), class: `line ${classes}` }));
    if (dots && at.length <= DOTS) {
      at.forEach((value, index) => this.visible(line[index]) && nodes.push(this.dot(value, line[index], `dot ${classes}`)));
    }
    return nodes;
  }

  visible(value) {
    return Number.isFinite(value) && (!this.log || value > 0);
  }

  dot(at, value, classes) {
    const r = classes.startsWith("dot") ? 2.6 : 4;
    return svg("circle", { cx: this.x.pixel(at).toFixed(1), cy: this.y.pixel(value).toFixed(1), r, class: classes });
  }

  path(at, values) {
    let path = "";
    let pen = "M";
    at.forEach((value, index) => {
      const isVisible = this.visible(values[index]);
      if (isVisible) path += `${pen}${this.x.pixel(value).toFixed(1)} ${this.y.pixel(values[index]).toFixed(1)}`;
      pen = isVisible ? "L" : "M";
    });
    return path;
  }

  band(at, low, high) {
    const lowest = this.y.low;
    const edge = (values, index) =>
      `${this.x.pixel(at[index]).toFixed(1)} ${this.y.pixel(this.visible(values[index]) ? values[index] : lowest).toFixed(1)}`;
    const indices = at.map((_, index) => index).filter((index) => Number.isFinite(high[index]));
    if (!indices.length) return "";
    const upper = indices.map((index) => edge(high, index));
    return `M${upper.concat(indices.reverse().map((index) => edge(low, index))).join("L")}Z`;
  }

  drawNotes({ y, height }) {
    const nodes = [];
    for (const run of this.runs) {
      if (this.view.hidden.has(run.number)) continue;
      for (const { text, at } of run.rollbacks) {
        const value = at[this.view.axis];
        if (!(value >= this.x.low && value <= this.x.high)) continue;
        const pixel = this.x.pixel(value);
        const mark = `M${pixel - 5} ${y}h10l-5 9z`;
        const line = svg("line", { x1: pixel, x2: pixel, y1: y, y2: y + height, class: `note ${runClass(run)}` });
        nodes.push(svg("g", {}, svg("title", {}, `${run.name}: ${text}`), line, svg("path", { d: mark, class: `mark ${runClass(run)}` })));
      }
    }
    return nodes;
  }

  /** The values of every run at the cursor: [{ curve, index }]. */
  atCursor() {
    const { cursor } = this.view;
    if (cursor === null || !this.x) return [];
    // A run that has ended has no values further on.
    const near = (value) => Math.abs(this.x.share(value) - this.x.share(cursor)) < NEAR;
    const within = ({ at }) => (cursor >= at[0] && cursor <= at.at(-1)) || near(at[0]) || near(at.at(-1));
    return this.curves.filter(within).map((curve) => ({ curve, index: nearest(curve.at, cursor) }));
  }

  drawCursor() {
    const curves = this.atCursor();
    this.tip.hidden = !curves.length || this.view.chart !== this;
    this.cursor?.replaceChildren();
    if (!curves.length || this.view.cursor < this.x.low || this.view.cursor > this.x.high) return;
    const pixel = this.x.pixel(this.view.cursor);
    this.cursor.append(svg("line", { x1: pixel, x2: pixel, y1: MARGIN.top, y2: this.height - MARGIN.bottom }));
    for (const { curve, index } of curves) {
      const inSight = curve.at[index] >= this.x.low && curve.at[index] <= this.x.high;
      if (inSight && this.visible(curve.line[index])) this.cursor.append(this.dot(curve.at[index], curve.line[index], `hit ${runClass(curve.run)}`));
    }
    if (!this.tip.hidden) this.fillTip(curves, pixel);
  }

  fillTip(curves, pixel) {
    const { axis, cursor } = this.view;
    const rows = curves.map(({ curve, index }) => {
      const range = curve.low && curve.low[index] < curve.high[index] ? ` (${this.what.text(curve.low[index])} to ${this.what.text(curve.high[index])})` : "";
      const where = element("span", { className: "quiet", textContent: AXES[axis].text(curve.at[index]) });
      return element("li", {}, swatch(curve.run), element("span", { textContent: curveName(this.what, curve) }), element("b", { textContent: this.what.text(curve.mean[index]) + range }), where);
    });
    const list = element("ul", {}, ...rows);
    list.style.columnCount = Math.max(1, Math.min(MOST_COLUMNS, Math.floor(this.width / COLUMN), Math.ceil((rows.length * ROW) / this.height)));
    this.tip.replaceChildren(element("p", { textContent: AXES[axis].text(cursor) }), list);
    // A list that is higher than the chart must not leave the window.
    this.tip.classList.toggle("high", this.area.getBoundingClientRect().top > innerHeight / 2);
    const wide = this.tip.offsetWidth;
    const beside = pixel > this.width / 2 ? pixel - 14 - wide : pixel + 14;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - wide, beside))}px`;
  }

  /** What the cursor shows, in words. */
  says() {
    return this.atCursor()
      .map(({ curve, index }) => `${curveName(this.what, curve)} ${this.what.text(curve.mean[index])}`)
      .join("; ");
  }
}
