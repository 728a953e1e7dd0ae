// Fields, their faults, and messages about them.

import { byId, element } from "../shared/elements.js";
import { nameOf } from "../look/data.js";

/** Whether a key belongs to an input method, which composes a character; 229 in browsers that do not say it otherwise. */
export const composing = (event) => event.isComposing || event.keyCode === 229;

const LISTED = 8; // unknown characters in a message

/** What a person has entered is not allowed; the message is for them. */
export class FieldError extends Error {
  constructor(message, id) {
    super(message);
    this.field = byId(id);
  }
}

/** The number in a field; whole numbers only if its step is 1. */
export function numberIn(id) {
  const field = byId(id);
  const name = field.labels[0].textContent.trim();
  const [lowest, highest] = [field.min, field.max].map((limit) => (limit === "" ? null : Number(limit)));
  const value = field.valueAsNumber;
  const isWhole = field.step === "1";
  if (Number.isNaN(value) || value < lowest || (highest !== null && value > highest) || (isWhole && value % 1)) {
    const allowed = `${isWhole ? "a whole number" : "a number"} from ${lowest}${highest === null ? "" : ` to ${highest}`}`;
    throw new FieldError(`${name}: found “${field.value}”; allowed: ${allowed}`, id);
  }
  return value;
}

const MOST_SEED = 2n ** 63n - 1n;

/** The seed in a field, of any length. */
export function seedIn(id) {
  const text = byId(id).value.trim();
  if (!/^\d{1,19}$/.test(text) || BigInt(text) > MOST_SEED) {
    throw new FieldError(`Seed: found “${text}”; allowed: a whole number from 0 to ${MOST_SEED}`, id);
  }
  return BigInt(text);
}

/** Characters with their code points: “é” (U+00E9), … */
export function listed(characters) {
  const shown = characters.slice(0, LISTED).map((character) => {
    const code = `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    const name = nameOf(character);
    return name === code ? code : `“${name}” (${code})`;
  });
  return shown.join(", ") + (characters.length > LISTED ? ` and ${characters.length - LISTED} more` : "");
}

/** Say in `box` that the model has never seen these characters of a field, and offer to delete them there. */
export function tellUnknown(box, field, vocabulary, unknown, then) {
  const deleted = new Set(unknown);
  const leaveOut = element("button", { type: "button", textContent: "Delete them" });
  leaveOut.addEventListener("click", () => {
    field.value = Array.from(vocabulary.familiar(field.value))
      .filter((character) => !deleted.has(character))
      .join("");
    box.replaceChildren();
    field.focus();
    then();
  });
  box.replaceChildren(`The model has never seen ${listed(unknown)}, and cannot read or write that. `, leaveOut);
}
