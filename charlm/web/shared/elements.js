// Elements of a page.

import { unpacked } from "./unpack.js";

export const byId = (id) => document.getElementById(id);

/** An element with properties, a role and ARIA attributes, and children; text is never parsed as markup. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.startsWith("aria-")) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** The same in SVG, with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Sets a text unless it stands there already: for an equal one, too, the browser would lay out a long text again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows the data of the page with show(data), or says why it cannot be shown. */
export async function showPage(show) {
  try {
    await show(await unpacked(JSON.parse(byId("data").textContent)));
  } catch (error) {
    byId("facts").textContent = `This page could not be read: ${error.message}`;
    throw error;
  }
  document.documentElement.dataset.ready = "yes";
}

const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };

/** Makes the buttons of a group one Tab stop, between which the arrow keys move; onMove(button). */
export function oneStop(group, onMove = () => {}) {
  const buttons = [...group.querySelectorAll("button")];
  const stopAt = (stop) => {
    for (const button of buttons) button.tabIndex = button === stop ? 0 : -1;
  };
  group.onkeydown = (event) => {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    stopAt(next);
    next.focus();
    onMove(next);
  };
  stopAt(buttons[0]);
  return stopAt;
}

/** Fills a group with a button for each entry, [value, label], of which one is chosen; onChoose(value), also at once. */
export function choice(group, entries, chosen, onChoose) {
  const isTabs = group.getAttribute("role") === "tablist";
  const buttons = entries.map(([value, textContent]) => {
    const tab = isTabs ? { role: "tab", id: `${value}-tab`, "aria-controls": `${value}-panel` } : { role: "radio" };
    return element("button", { type: "button", value, textContent, onclick: () => choose(value), ...tab });
  });
  group.replaceChildren(...buttons);
  const stopAt = oneStop(group, ({ value }) => choose(value));
  function choose(value) {
    for (const button of buttons) {
      button.setAttribute(isTabs ? "aria-selected" : "aria-checked", String(button.value === value));
      if (button.value === value) stopAt(button);
    }
    onChoose(value);
  }
  choose(chosen);
}
