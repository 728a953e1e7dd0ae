// A chart as a file.

const SAVED_STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font", "text-anchor"];

/** Saves a picture as SVG, with the style that it has on the page. */
export function saveSvg(picture, name) {
  const copy = picture.cloneNode(true);
  const originals = picture.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    for (const property of SAVED_STYLES) node.style[property] = style[property];
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const file = new Blob([copy.outerHTML], { type: "image/svg+xml" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
