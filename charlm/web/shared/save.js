// A chart as a file.

import { element, svg } from "./elements.js";

const SAVED_STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font", "text-anchor"];
const [TITLE_ROW, LEGEND_ROW, LEGEND_LINE] = [24, 18, 30]; // pixels

/**
 * A button that saves a chart as SVG. chart(): its picture, its title, which is also the file's name, and its lines,
 * [{ name, className }], which are named below it.
 */
export function saveButton(name, chart) {
  const label = { "aria-label": `save ${name} as SVG` };
  return element("button", { type: "button", className: "small", textContent: "SVG", onclick: () => saveChart(name, chart()), ...label });
}

function saveChart(name, { picture, title, lines }) {
  const { width, height } = picture.viewBox.baseVal;
  const legend = lines.map((line, number) => {
    const y = height + LEGEND_ROW * (number + 0.5);
    const text = svg("text", { x: LEGEND_LINE + 8, y, dy: "0.35em", class: "label" }, line.name);
    return svg("g", {}, svg("line", { x1: 0, x2: LEGEND_LINE, y1: y, y2: y, class: `line ${line.className}` }), text);
  });
  const added = svg("g", {}, svg("text", { x: 0, y: -9, class: "label" }, title), ...legend);
  picture.append(added); // where the style sheet finds it
  const box = { x: 0, y: -TITLE_ROW, width, height: TITLE_ROW + height + LEGEND_ROW * lines.length };
  const file = new Blob([styled(picture, box)], { type: "image/svg+xml" });
  added.remove();
  const link = element("a", { href: URL.createObjectURL(file), download: `${name}.svg` });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** A part of the picture as text, in which elements have the style and the background that they have on the page. */
function styled(picture, box) {
  const copy = picture.cloneNode(true);
  const usual = getComputedStyle(picture);
  const originals = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    for (const property of SAVED_STYLES) {
      if (style[property] !== usual[property]) node.style[property] = style[property];
    }
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", Object.values(box).join(" "));
  copy.prepend(svg("rect", { ...box, fill: usual.getPropertyValue("--card") }));
  return copy.outerHTML;
}
