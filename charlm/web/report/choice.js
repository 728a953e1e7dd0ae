// A few buttons of which one is chosen.

import { element } from "../shared/elements.js";

/** Fill a group with a button for each entry, [value, label]; onChoose(value) at once for the first choice too. */
export function choice(group, entries, chosen, onChoose) {
  const buttons = entries.map(([value, label]) => {
    const button = element("button", { type: "button", value, textContent: label, onclick: () => choose(value) });
    button.setAttribute("role", "radio");
    return button;
  });
  const choose = (value) => {
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button.value === value));
      button.tabIndex = button.value === value ? 0 : -1;
    }
    onChoose(value);
  };
  group.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    next.focus();
    choose(next.value);
  });
  group.replaceChildren(...buttons);
  choose(chosen);
}
