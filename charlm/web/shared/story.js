// What the network of a page has done, for those who meet one for the first time.

const UNITS = [
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
  ["second", 1],
];

/** A time span in words: 300 → "5 minutes". */
export function timeSpan(seconds) {
  const [name, size] = UNITS.find(([, size]) => seconds >= 0.95 * size) ?? UNITS.at(-1);
  const count = Math.max(1, Math.round(seconds / size));
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

/** "A network read hamlet.txt for 5 minutes."; facts: those of `model_facts`. */
export function story({ source, step, elapsed: elapsedS }) {
  if (!step) return "A network that has not been trained yet.";
  return `A network read ${source}${elapsedS ? ` for ${timeSpan(elapsedS)}` : ""}.`;
}
