// A chart: one or two curves of every run over a shared axis, with a cursor, a selection by dragging, and notes.

import { element, oneStop, svg } from "../shared/elements.js";
import { short } from "../shared/numbers.js";
import { saveButton } from "../shared/save.js";
import { extent, makeScale, ticksOf, widened } from "../shared/scale.js";
import { chartWords, nearest, seenValues, smoothed } from "./curve.js";
import { runClass, swatch } from "./data.js";
import { AXES, tickText, timeUnit } from "./numbers.js";

const MARGIN = { left: 62, right: 24, top: 10, bottom: 38 };
const [NARROW, NARROW_LEFT] = [500, 46]; // pixels: a chart up to this width has this margin at its left
const DOT = 2.6; // radius
const DOTS = 80; // points of a curve up to which each is a dot
export const SMOOTHED = 30; // points from which on a curve is smoothed
const NEAR = 0.02; // share of the axis within which the cursor finds the end of a curve
const [ROW, COLUMN, MOST_COLUMNS] = [21, 260, 3]; // the box at the cursor, in pixels
const DRAG = 6; // pixels below which a drag is a click
const SPLITS = { train: "training", valid: "validation" };

export class Chart {
  /** what: { id, name, unit(), log, smooth, curves: [{ split, key, dots }], value(number), text(number) }; view: what
   * all charts share, see charts.js; onCursor(at, chart), onRange(range). */
  constructor(box, runs, what, view, onCursor, onRange) {
    Object.assign(this, { runs, what, view, onCursor, onRange });
    this.log = what.log;
    this.title = element("h2");
    const label = { "aria-label": `log y of ${what.name}` };
    const onclick = () => {
      this.log = !this.log;
      this.draw();
    };
    this.button = element("button", { type: "button", className: "small", textContent: "log y", onclick, ...label });
    const saved = saveButton(what.name, () => {
      const lines = this.curves.map(({ name, split, run }) => ({ name, className: `${split} ${runClass(run)}` }));
      return { picture: this.svg, title: this.title.textContent, lines };
    });
    const tools = element("span", { role: "group", "aria-label": what.name }, this.button, " ", saved);
    oneStop(tools);
    this.svg = svg("svg", { class: "plot", "aria-hidden": "true" });
    this.tip = element("div", { className: "tip", hidden: true });
    const keys = { tabIndex: 0, role: "application", "aria-describedby": "keys" };
    this.area = element("div", { className: "area", ...keys }, this.svg, this.tip);
    box.append(element("div", { className: "head" }, this.title, tools), this.area);
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
    addEventListener("pointercancel", () => this.drop()); // a finger that scrolls the page
  }

  pixelAt(event) {
    const pixel = event.clientX - this.svg.getBoundingClientRect().left;
    return Math.max(this.left, Math.min(this.width - MARGIN.right, pixel));
  }

  moved(event) {
    if (!this.x) return;
    const pixel = this.pixelAt(event);
    this.onCursor(this.x.value(pixel), this);
    if (!this.dragged || !event.buttons) return;
    this.selection.setAttribute("x", Math.min(this.dragged[0], pixel));
    this.selection.setAttribute("width", Math.abs(this.dragged[0] - pixel));
  }

  /** Ends a drag; returns where it began: a pixel, and where the pointer was in the window. */
  drop() {
    const began = this.dragged ?? [];
    this.dragged = null;
    this.selection?.setAttribute("width", 0);
    return began;
  }

  released(event) {
    const [start, clientX] = this.drop();
    if (start === undefined || !this.x || Math.abs(event.clientX - clientX) < DRAG) return;
    this.onRange([start, this.pixelAt(event)].map(this.x.value).sort((a, b) => a - b));
  }

  /** The curves of the runs in sight, as numbers of the chart; `name` tells them apart. */
  collect() {
    const { axis, splits } = this.view;
    const isPair = this.what.curves.length > 1;
    const curves = [];
    for (const run of this.runs.filter(this.view.shows)) {
      for (const { split, key, dots } of this.what.curves) {
        const { rows, at, [key]: values } = run.curves[split];
        if (!rows || (isPair && !splits.has(split))) continue;
        const [mean, low, high] = [values.mean, values.low, values.high].map((each) => each && Array.from(each, this.what.value));
        const name = isPair ? `${run.name} ${SPLITS[split]}` : run.name;
        curves.push({ run, split, dots, name, at: Array.from(at[axis]), mean, low, high });
      }
    }
    return curves;
  }

  draw() {
    this.width = this.area.clientWidth;
    this.height = this.area.clientHeight;
    this.left = this.width > NARROW ? MARGIN.left : NARROW_LEFT;
    if (!this.width) return;
    const { logX, range, smooth } = this.view;
    this.button.setAttribute("aria-pressed", String(this.log));
    this.title.textContent = [this.what.name, this.what.unit()].filter(Boolean).join(", ");
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.curves = this.collect();
    const room = { left: this.left, right: this.width - MARGIN.right, top: MARGIN.top, bottom: this.height - MARGIN.bottom };
    const across = extent(this.curves.map(({ at }) => at), logX);
    this.x = across && makeScale(...widened(range ?? across, logX, 0), room.left, room.right, logX);
    this.area.setAttribute("aria-label", chartWords(this.title.textContent, this.x ? this.curves : [], this.x, this.what.text));
    if (!this.x) return this.drawNothing();
    for (const curve of this.curves) {
      const isSmooth = this.what.smooth && !curve.dots && curve.at.length >= SMOOTHED;
      curve.line = smoothed(curve.at.map(this.x.share), curve.mean, isSmooth ? smooth / 100 : 0);
    }
    const up = extent(this.curves.map((curve) => seenValues(curve, this.x)), this.log);
    if (!up) return this.drawNothing();
    this.y = makeScale(...widened(up, this.log, 0.05), room.bottom, room.top, this.log);
    const clip = `inside-${this.what.id}`;
    const inside = { x: room.left, y: room.top, width: room.right - room.left, height: room.bottom - room.top };
    this.selection = svg("rect", { ...inside, width: 0, class: "selection" });
    this.cursor = svg("g", { class: "cursor" });
    this.svg.replaceChildren(
      svg("clipPath", { id: clip }, svg("rect", { ...inside, x: room.left - DOT, width: inside.width + 2 * DOT })),
      ...this.axes(room),
      svg("g", { "clip-path": `url(#${clip})` }, ...this.curves.flatMap((curve) => this.drawn(curve))),
      ...this.notes(room),
      this.selection,
      this.cursor,
    );
    this.drawCursor();
  }

  drawNothing() {
    const middle = { x: this.width / 2, y: this.height / 2, class: "label middle" };
    this.svg.replaceChildren(svg("text", middle, "nothing to show"));
    this.x = null;
    this.tip.hidden = true;
  }

  axes({ left, right, top, bottom }) {
    const nodes = [];
    for (const value of ticksOf(this.y, (bottom - top) / 45)) {
      const y = this.y.pixel(value).toFixed(1);
      nodes.push(svg("line", { x1: left, x2: right, y1: y, y2: y, class: "grid" }));
      nodes.push(svg("text", { x: left - 7, y, dy: "0.35em", class: "label end" }, value >= 1e4 ? tickText(value) : short(value)));
    }
    const { axis } = this.view;
    const { size, name } = axis === "elapsed_s" ? timeUnit(this.x.high) : { size: 1, name: AXES[axis].label };
    const scaled = { low: this.x.low / size, high: this.x.high / size, log: this.x.log };
    for (const value of ticksOf(scaled, (right - left) / 70)) {
      const x = this.x.pixel(value * size).toFixed(1);
      nodes.push(svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "tick" }));
      nodes.push(svg("text", { x, y: bottom + 17, class: "label middle" }, tickText(value)));
    }
    nodes.push(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "tick" }));
    nodes.push(svg("text", { x: right, y: bottom + 33, class: "label end" }, name));
    return nodes;
  }

  drawn({ run, split, at, mean, line, low, high, dots }) {
    const classes = `${split} ${runClass(run)}`;
    const nodes = [svg("path", { d: this.path(at, line), class: `line ${classes}` })];
    if (low) nodes.unshift(svg("path", { d: this.band(at, low, high), class: `band ${classes}` }));
    else if (line !== mean) nodes.unshift(svg("path", { d: this.path(at, mean), class: `raw ${classes}` }));
    if (dots && at.length <= DOTS) nodes.push(...at.map((_, index) => this.dot(at, line, index, DOT, `dot ${classes}`)));
    return nodes;
  }

  isVisible(value) {
    return Number.isFinite(value) && (!this.log || value > 0);
  }

  dot(at, values, index, r, classes) {
    if (!this.isVisible(values[index])) return "";
    return svg("circle", { cx: this.x.pixel(at[index]).toFixed(1), cy: this.y.pixel(values[index]).toFixed(1), r, class: classes });
  }

  path(at, values) {
    let path = "";
    let pen = "M";
    at.forEach((value, index) => {
      const isVisible = this.isVisible(values[index]) && !(this.x.log && value <= 0);
      if (isVisible) path += `${pen}${this.x.pixel(value).toFixed(1)} ${this.y.pixel(values[index]).toFixed(1)}`;
      pen = isVisible ? "L" : "M";
    });
    return path;
  }

  band(at, low, high) {
    const edge = (values) => (index) => {
      const value = this.isVisible(values[index]) ? values[index] : this.y.low;
      return `${this.x.pixel(at[index]).toFixed(1)} ${this.y.pixel(value).toFixed(1)}`;
    };
    const indices = [...at.keys()].filter((index) => Number.isFinite(high[index]));
    const outline = [...indices.map(edge(high)), ...indices.reverse().map(edge(low))];
    return outline.length ? `M${outline.join("L")}Z` : "";
  }

  notes({ top, bottom }) {
    const nodes = [];
    for (const run of this.runs.filter(this.view.shows)) {
      for (const { text, at } of run.rollbacks) {
        const value = at[this.view.axis];
        if (!(value >= this.x.low && value <= this.x.high)) continue;
        const x = this.x.pixel(value);
        const line = svg("line", { x1: x, x2: x, y1: top, y2: bottom, class: `note ${runClass(run)}` });
        const mark = svg("path", { d: `M${x - 5} ${top}h10l-5 9z`, class: `mark ${runClass(run)}` });
        nodes.push(svg("g", {}, svg("title", {}, `${run.name}: ${text}`), line, mark));
      }
    }
    return nodes;
  }

  /** The values of every run at the cursor, the highest first, as the lines lie: [{ curve, index }]. */
  atCursor() {
    const { cursor } = this.view;
    if (cursor === null || !this.x) return [];
    // A run that has ended has no values further on.
    const near = (value) => Math.abs(this.x.share(value) - this.x.share(cursor)) < NEAR;
    const isWithin = ({ at }) => (cursor >= at[0] && cursor <= at.at(-1)) || near(at[0]) || near(at.at(-1));
    const found = this.curves.filter(isWithin).map((curve) => ({ curve, index: nearest(curve.at, cursor) }));
    const height = ({ curve, index }) => (Number.isNaN(curve.mean[index]) ? -Infinity : curve.mean[index]);
    return found.sort((a, b) => height(b) - height(a));
  }

  drawCursor() {
    const curves = this.atCursor();
    this.tip.hidden = !curves.length || this.view.chart !== this;
    this.cursor?.replaceChildren();
    if (!curves.length || this.view.cursor < this.x.low || this.view.cursor > this.x.high) return;
    const pixel = this.x.pixel(this.view.cursor);
    this.cursor.append(svg("line", { x1: pixel, x2: pixel, y1: MARGIN.top, y2: this.height - MARGIN.bottom }));
    for (const { curve, index } of curves) {
      const isInSight = curve.at[index] >= this.x.low && curve.at[index] <= this.x.high;
      if (isInSight) this.cursor.append(this.dot(curve.at, curve.line, index, 4, `hit ${runClass(curve.run)}`));
    }
    if (!this.tip.hidden) this.fillTip(curves, pixel);
  }

  fillTip(curves, pixel) {
    const { axis, cursor } = this.view;
    const place = AXES[axis].text;
    const needed = Math.ceil((curves.length * ROW) / this.height);
    const columns = Math.max(1, Math.min(MOST_COLUMNS, Math.floor(this.width / COLUMN), needed));
    const most = columns * Math.max(3, Math.floor(innerHeight / ROW / 2));
    const rows = curves.slice(0, most).map(({ curve, index }) => {
      const [low, high] = [curve.low?.[index], curve.high?.[index]];
      const range = low < high ? ` (${this.what.text(low)} to ${this.what.text(high)})` : "";
      const value = element("b", { textContent: this.what.text(curve.mean[index]) + range });
      const where = place(curve.at[index]) === place(cursor) ? "" : place(curve.at[index]);
      const name = element("span", { textContent: curve.name });
      return element("li", {}, swatch(curve.run, curve.split), name, value, element("span", { className: "quiet", textContent: where }));
    });
    const list = element("ul", {}, ...rows);
    list.style.columnCount = columns;
    const more = curves.length > most ? [element("p", { textContent: `and ${curves.length - most} more` })] : [];
    this.tip.replaceChildren(element("p", { textContent: place(cursor) }), list, ...more);
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const beside = pixel > this.width / 2 ? pixel - 14 - width : pixel + 14;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - width, beside))}px`;
    // It must not leave the window.
    const { top } = this.area.getBoundingClientRect();
    this.tip.style.top = `${Math.max(8 - top, Math.min(8, innerHeight - top - height - 8))}px`;
  }

  /** What the cursor shows, in words. */
  says() {
    return this.atCursor().map(({ curve, index }) => `${curve.name} ${this.what.text(curve.mean[index])}`).join("; ");
  }
}
