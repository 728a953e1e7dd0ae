// Scores, times and axes for people to read.

import { compact, whole } from "../shared/numbers.js";

/** A score in the chosen unit. */
export const scoreIn = (unit, nats) => (unit === "bits" ? nats / Math.LN2 : nats);

/** A score as text. */
export function scoreText(unit, nats) {
  return nats === null || Number.isNaN(nats) ? "—" : scoreIn(unit, nats).toFixed(4);
}

/** 3725 → "1 h 2 min". */
export function duration(seconds) {
  if (seconds === null) return "—";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
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
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(6))} M`;
  return value >= 1e4 ? `${Number((value / 1e3).toPrecision(6))} k` : String(value);
}
