// Puts the page together: what the colors show, and what happens when something is chosen.

import { legendColors, signedShade, surpriseScale } from "./colors.js";
import { byId, element } from "../shared/elements.js";
import { bitsAt, nameOf, whole } from "./data.js";
import { sentence, showPrediction } from "./details.js";
import { story } from "../shared/story.js";
import { loadData } from "./load.js";
import { advantage, copiedMarks, fillCompared, fillCopied, fillMemory, fillStretches, tenths } from "./panels.js";
import { drawNorms } from "./gradients.js";
import { Strip } from "./strip.js";
import { TextView } from "./text.js";
import { Units } from "./units.js";

async function start() {
  const data = await loadData();
  const length = data.characters.length;
  const scale = surpriseScale(data.characters.map((_, index) => bitsAt(data.reading, index)));
  const models = data.compare ? [data, data.compare] : [data];
  const guesses = `It guesses every next ${data.symbol};`;
  let view = "";
  let selected = null; // a part of the text

  const units = new Units(data.units, () => {
    setView("unit");
    toText();
  });
  const strip = new Strip(byId("strip"), length, selectRange, (index) => text.show(index, true));
  const marks = copiedMarks(length, data.copied);
  const text = new TextView(byId("text"), byId("printed"), data.characters, marks, tell, (sight) => strip.look(sight), select);
  text.isSurprise = (index) => bitsAt(data.reading, index) >= scale.surprising;

  const views = {
    surprise: {
      label: "Surprise",
      value: () => (index) => bitsAt(data.reading, index),
      shade: (value) => scale.shade(value),
      words: ["0 bits", `${scale.most} bits or more`],
      says: "Bits per character over the text",
      inBits: true,
      color: `${guesses} orange: it was surprised.`,
    },
    entropy: {
      label: "Uncertainty",
      value: () => (index) => (Number.isNaN(bitsAt(data.reading, index)) ? NaN : data.reading.entropy[index] / 1000),
      shade: (value) => scale.shade(value),
      words: ["sure", "unsure"],
      says: "Entropy of the prediction over the text",
      color: `${guesses} orange: it was unsure.`,
    },
    unit: {
      label: "Unit",
      value: () => units.value(),
      shade: (value) => signedShade(value),
    },
    compare: {
      label: "Compare",
      signed: true,
      value: () => (index) => -advantage(data, index),
      shade: (value) => (Number.isNaN(value) ? 0 : signedShade(value / 4)),
      words: [`${data.name} better`, `${data.compare?.name} better`],
      says: "Difference of the two models' bits over the text",
      inBits: true,
      color: `${guesses} blue: it was less surprised than ${data.compare?.name}; orange: more.`,
    },
  };
  if (!data.units.length) delete views.unit;
  if (!data.compare) delete views.compare;

  function tell(index) {
    document.body.classList.remove("no-details");
    const more = view === "unit" ? units.tells(index) : "";
    showPrediction(byId("prediction"), data, index, more);
    // Only what the keys move to is spoken: the pointer moves too fast.
    if (document.activeElement === byId("text")) {
      byId("spoken").textContent = `${nameOf(data.characters[index])}: ${sentence(data, data.reading, index)} ${more}`;
    }
  }

  function setView(name) {
    view = name;
    const { value, shade, signed, words, says, color } = { ...views[name], ...(name === "unit" && units.colored()) };
    byId("story").textContent = `${story(data)} ${color}`;
    const valueAt = value();
    text.shade = (index) => shade(valueAt(index));
    text.render(true);
    strip.show(valueAt, Boolean(signed));
    byId("strip").setAttribute("aria-label", `${says}, ${strip.says()}; drag, or Shift and the arrow keys, to select a part`);
    byId("unit-bar").hidden = name !== "unit";
    const gradient = element("span", { className: "gradient" });
    gradient.style.backgroundImage = legendColors(Boolean(signed));
    byId("legend").replaceChildren(words[0], gradient, words[1]);
    for (const button of byId("views").children) {
      button.setAttribute("aria-checked", String(button.value === name));
      button.tabIndex = button.value === name ? 0 : -1;
    }
    tellRange();
    if (text.selected >= 0) tell(text.selected);
  }

  /** A part was selected on the chart, or null. */
  function selectRange(range) {
    selectPart(range);
    if (range) text.show(range[0], true);
  }

  /** A part was selected in the text. */
  function select(range) {
    strip.mark(range);
    selectPart(range);
  }

  function selectPart(range) {
    selected = range;
    text.mark(range);
    units.compare(range);
    tellRange();
  }

  /** Which part is selected, and its mean if the color is about bits. */
  function tellRange() {
    const bits = models.map(({ name, reading }) => {
      const mean = meanBits(reading, ...(selected ?? [0, length - 1])).toFixed(2);
      return data.compare ? `${name} ${mean}` : mean;
    });
    const extent = selected
      ? `${data.symbol}s ${whole(selected[0] + 1)} to ${whole(selected[1] + 1)}`
      : `all ${whole(length)} ${data.symbol}s`;
    const mean = `${bits.join(", ")} bits per ${data.symbol} in ${extent}`;
    byId("range").textContent = views[view].inBits ? mean : selected ? `Selected: ${extent}` : "";
  }

  /** On a narrow screen, where the text may be out of sight, scroll the page to it. */
  function toText() {
    if (matchMedia("(max-width: 900px)").matches) byId("text").scrollIntoView();
  }

  function go(start, size) {
    text.frame([start, start + size - 1]);
    text.select(start, true);
    text.show(start, true);
    toText();
  }

  byId("name").textContent = data.name;
  const facts = [
    data.kind,
    `${whole(data.parameters)} parameters`,
    data.step ? `${whole(data.step)} updates` : "",
    `${data.bits.toFixed(3)} bits per ${data.symbol} of this text`,
    data.compare ? `${data.compare.name}: ${data.compare.bits.toFixed(3)} bits` : "",
    `${whole(length)} ${data.symbol}s`,
  ];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  for (const [name, { label }] of Object.entries(views)) {
    const button = element("button", { type: "button", value: name, textContent: label, onclick: () => setView(name) });
    button.setAttribute("role", "radio");
    byId("views").append(button);
  }
  byId("views").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    const names = Object.keys(views);
    setView(names[(names.indexOf(view) + step + names.length) % names.length]);
    [...byId("views").children].find((button) => button.value === view).focus();
  });
  byId("copies").addEventListener("change", (event) => {
    text.underlines = event.target.checked;
    text.render(true);
  });
  byId("close-details").addEventListener("click", () => document.body.classList.add("no-details"));
  byId("copies").checked = text.underlines = data.copied.length > 0;
  byId("copies").parentElement.hidden = !text.underlines;
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    text.frame(null);
    strip.set(null);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => strip.measure());
  byId("text").setAttribute("aria-label", `The text, ${whole(length)} ${data.symbol}s`);
  fillStretches(byId("words"), data.characters, data.words, tenths, go);
  fillCopied(byId("copied"), byId("copied-note"), data, go);
  if (data.memory.curve.length) fillMemory(byId("memory"), models, data.symbol);
  if (data.gradients) drawNorms(byId("gradients"), models, data.symbol);
  if (data.compare) {
    document.body.classList.add("two");
    fillCompared(byId("compared"), data, go);
  }
  const hasCard = {
    units: data.units.length,
    compared: data.compare,
    words: data.words.length,
    memory: data.memory.curve.length,
    gradients: data.gradients,
    copied: data.copied.length,
  };
  for (const [name, has] of Object.entries(hasCard)) byId(`${name}-card`).hidden = !has;
  setView(data.compare ? "compare" : "surprise");
  selectRange(null);
  text.select(strongest(data.reading, text.sight(uncovered(byId("text")))));
  document.documentElement.dataset.ready = "yes";
}

/** How many pixels of a box are on the screen; on a narrow one the prediction covers its lower part. */
function uncovered(box) {
  const bottom = innerHeight - parseFloat(getComputedStyle(document.body).paddingBottom);
  const { top, height } = box.getBoundingClientRect();
  return Math.max(1, Math.min(height, bottom - top) - parseFloat(getComputedStyle(box).paddingTop));
}

/** Where the surprise is strongest from one index to another. */
function strongest(reading, [from, to]) {
  const bits = (index) => bitsAt(reading, index) || 0; // the first character has none
  let best = from;
  for (let index = from; index <= to; index++) if (bits(index) > bits(best)) best = index;
  return best;
}

/** The mean from one index to another. */
function meanBits(reading, from, to) {
  let [sum, count] = [0, 0];
  for (let index = from; index <= to; index++) {
    const bits = bitsAt(reading, index);
    if (Number.isNaN(bits)) continue;
    sum += bits;
    count++;
  }
  return sum / Math.max(count, 1);
}

start().catch((error) => {
  byId("facts").textContent = `This page could not be read: ${error.message}`;
  throw error;
});
