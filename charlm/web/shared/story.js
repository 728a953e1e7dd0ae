// What the network of a page has done, for those who meet one for the first time.

import { timeSpan } from "./numbers.js";

/** "A network read hamlet.txt for 5 minutes."; facts: those of `model_facts`. */
export function story({ source, step, elapsed: elapsedS }) {
  if (!step) return "A network that has not been trained yet.";
  return `A network read ${source}${elapsedS ? ` for ${timeSpan(elapsedS)}` : ""}.`;
}
