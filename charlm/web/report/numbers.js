// Numbers with units, for people to read.

const LN2 = Math.log(2);

/** 12345 → "12,345"; "—" for what is unknown. */
export function whole(number) {
  return number === null ? "—" : Math.round(number).toLocaleString("en");
}

/** Three digits that count, with a unit: 1234567 → "1.23 M". */
export function compact(number) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(number) >= size) return `${Number((number / size).toPrecision(3))} ${unit}`;
  }
  return String(Number(number.toPrecision(3)));
}

/** 3725 → "1 h 2 min". */
export function duration(seconds) {
  if (seconds === null) return "—";
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A value of a chart to as many digits as are of use. */
export function short(number) {
  if (Number.isNaN(number)) return "—";
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return number.toExponential(2).replace(/\.?0*e\+?/, "e").replace("-", "−");
  return size >= 1000 ? whole(number) : String(Number(number.toPrecision(4)));
}

/** The loss in the chosen unit. */
export function lossIn(unit, nats) {
  return unit === "bits" ? nats / LN2 : nats;
}

/** The loss as text. */
export function lossText(unit, nats) {
  return nats === null || Number.isNaN(nats) ? "—" : lossIn(unit, nats).toFixed(4);
}

/** What the horizontal axis can show. */
export const AXES = {
  step: { label: "updates", text: (value) => `update ${whole(value)}` },
  chars: { label: "characters", text: (value) => `${compact(value)} characters` },
  elapsed_s: { label: "time", text: duration },
};

/** The unit in which times up to `most` seconds are marked on an axis. */
export function timeUnit(most) {
  if (most > 3 * 3600) return { size: 3600, name: "hours" };
  return most > 180 ? { size: 60, name: "minutes" } : { size: 1, name: "seconds" };
}

/** A mark of the horizontal axis. */
export function tickText(value) {
  if (value >= 1e4) return value >= 1e6 ? `${Number((value / 1e6).toPrecision(6))} M` : `${Number((value / 1e3).toPrecision(6))} k`;
  return String(value);
}
