// Numbers for people to read, and the story of a network.

/** 12345 → "12,345"; "—" for what is unknown. */
export const whole = (number) => (number === null ? "—" : Math.round(number).toLocaleString("en"));

/** Three digits, with a unit: 1234567 → "1.23 M", 10000 → "10.0 k". */
export function compact(number) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(number) >= 0.9995 * size) return `${(number / size).toPrecision(3)} ${unit}`;
  }
  return String(Number(number.toPrecision(3)));
}

/** To as many digits as are of use on an axis. */
export function short(number) {
  if (Number.isNaN(number)) return "—";
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return powerOfTen(number);
  return size >= 1000 ? whole(number) : String(Number(number.toPrecision(4)));
}

/** 1e-12 → "10⁻¹²", 25000000 → "2.5·10⁷". */
function powerOfTen(number) {
  const [mantissa, exponent] = number.toExponential(2).split("e");
  const raised = Array.from(String(Number(exponent)), (digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]).join("");
  const factor = String(Number(mantissa)).replace("-", "−");
  return factor === "1" ? `10${raised}` : `${factor}·10${raised}`;
}

/** A probability. */
export const percent = (share) =>
  share >= 0.1 ? `${(100 * share).toFixed(0)}%` : share >= 0.001 ? `${(100 * share).toFixed(1)}%` : "<\u00a00.1%";

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

/** "h 17, layer 1". */
export const unitName = ({ state, unit, layer }) => `${state} ${unit}, layer ${layer}`;

export const rounded = (value) => value.toFixed(2).replace("-", "−");

/** "correlation 0.83 with “inside quotes”". */
export const unitSays = ({ correlation, feature }) => `correlation ${rounded(correlation)} with “${feature}”`;
