// Messages about what was typed.

import { element } from "../shared/elements.js";
import { codeOf, nameOf } from "../shared/printable.js";

/** Whether a key belongs to an input method, which composes a character; 229 in browsers that do not say it otherwise. */
export const composing = (event) => event.isComposing || event.keyCode === 229;

/** Keeps what is typed or chosen in a form over a reload of the page, but not its seed. */
export function keepOverReload(form) {
  const fields = [...form.elements].filter(({ id }) => id && id !== "seed");
  const valueOf = ({ type }) => (type === "checkbox" ? "checked" : "value");
  const key = `charlm ${location.pathname}`;
  try {
    const kept = JSON.parse(sessionStorage.getItem(key)) ?? {};
    const keep = () => {
      const values = fields.map((field) => [field.id, field[valueOf(field)]]);
      sessionStorage.setItem(key, JSON.stringify(Object.fromEntries(values)));
    };
    for (const field of fields) {
      if (field.id in kept) {
        field[valueOf(field)] = kept[field.id];
        field.dispatchEvent(new Event("change"));
      }
      field.addEventListener("input", keep); // some fields stand outside the form
    }
  } catch (error) {
    if (!(error instanceof DOMException)) throw error; // a browser that keeps nothing
  }
}

/** Copy a text; whether that worked. Without TLS a page has no clipboard, and marks the text instead. */
export async function copied(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  const focused = document.activeElement;
  const field = element("textarea", { value: text });
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused.focus();
  return isCopied;
}

const LISTED = 8; // unknown characters in a message

/** Characters with their code points: “é” (U+00E9), … */
export function listed(characters) {
  const shown = characters.slice(0, LISTED).map((character) => {
    const [code, name] = [codeOf(character), nameOf(character)];
    const form = /[\u0300-\u036f]/u.test(character) ? ", part of a letter in Unicode form NFD" : "";
    return name === code ? `${code}${form}` : `“${name}” (${code}${form})`;
  });
  return shown.join(", ") + (characters.length > LISTED ? ` and ${characters.length - LISTED} more` : "");
}

/** Mark a field as wrong until it is changed, and move to it. */
export function blame(field) {
  field.setAttribute("aria-invalid", "true");
  field.addEventListener("input", () => field.removeAttribute("aria-invalid"), { once: true });
  field.focus();
}

const QUOTES = "'\"’”‘“„«»";

/** Say in `box` that the model has never seen these characters of a field, and offer to replace or delete them there. */
export function tellUnknown(box, field, vocabulary, unknown, then) {
  const offer = (textContent, replaced) => {
    const onclick = () => {
      field.value = Array.from(vocabulary.familiar(field.value), replaced).join("");
      field.removeAttribute("aria-invalid");
      box.replaceChildren();
      field.focus();
      then();
    };
    return element("button", { type: "button", textContent, onclick });
  };
  const quote = Array.from(QUOTES).find((each) => vocabulary.ids.has(each));
  const quotes = unknown.filter((character) => QUOTES.includes(character));
  const offers = [offer("Delete them", (character) => (unknown.includes(character) ? "" : character))];
  if (quote && quotes.length) {
    offers.unshift(offer(`Replace ${quotes.join(" ")} by ${quote}`, (character) => (quotes.includes(character) ? quote : character)));
  }
  box.replaceChildren(`The model has never seen ${listed(unknown)}, and cannot read or write that. `, ...offers);
  if (document.activeElement !== field) blame(field);
}
