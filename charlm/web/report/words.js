// Charts in words, for those who cannot see them.

const SPLITS = { train: "training", valid: "validation" };
const MOST = 8; // curves that are told of

/** How a curve is called; what: as a chart has it. */
export function curveName(what, { run, split }) {
  return what.curves.length > 1 ? `${run.name} ${SPLITS[split]}` : run.name;
}

/** A chart's text alternative: where each curve in sight begins, ends and is lowest. */
export function chartWords(title, what, curves) {
  const told = curves.slice(0, MOST).map((curve) => {
    const known = curve.mean.slice(...curve.inside).filter(Number.isFinite);
    if (!known.length) return `${curveName(what, curve)} has no values`;
    const least = known.reduce((low, value) => Math.min(low, value));
    const [first, low, last] = [known[0], least, known.at(-1)].map(what.text);
    return `${curveName(what, curve)} from ${first} to ${last}, lowest ${low}`;
  });
  if (curves.length > MOST) told.push(`and ${curves.length - MOST} more`);
  return `${title}: chart; ${told.join("; ") || "nothing to show"}. Arrow keys move through it.`;
}
