// Puts the page together: what the colors show, and what happens when something is chosen.

import { fillLegend, signedShade, surpriseScale } from "../shared/colors.js";
import { byId, choice, showPage } from "../shared/elements.js";
import { whole } from "../shared/numbers.js";
import { story } from "../shared/story.js";
import { unpackArray } from "../shared/unpack.js";
import { advantage, fillCompared, fillGradients, fillMemory, fillWords } from "./cards.js";
import { bitsAt, Pane } from "./prediction.js";
import { Strip } from "./strip.js";
import { Units } from "./units.js";

const ENOUGH = 200; // characters among which the first shown is looked for, if fewer are in sight

async function unpackReading(model) {
  for (const name of ["bits", "entropy", "rank", "top", "p"]) model.reading[name] = await unpackArray(model.reading[name]);
}

async function show(data) {
  data.characters = Array.from(data.text);
  const models = data.compare ? [data, data.compare] : [data];
  await Promise.all(models.map(unpackReading));
  for (const { curves } of data.units) for (const curve of curves) curve.values = await unpackArray(curve);
  const { length } = data.characters;
  const scale = surpriseScale(data.characters.map((_, index) => bitsAt(data.reading, index)));
  const guesses = `It guesses every next ${data.symbol};`;
  let view = "";

  const strip = new Strip(byId("strip"), length, (index) => text.scrollTo(index, true));
  const label = `The text, ${whole(length)} ${data.symbol}s`;
  const pane = new Pane(data, label, "Its guesses; orange: what came.", (sight) => strip.look(sight));
  const text = pane.view;
  byId("cards").prepend(pane.card);
  byId("keys").before(pane.box, pane.printed);
  const copied = new Uint8Array(length);
  for (const [start, size] of data.copied) copied.fill(1, start, start + size);
  text.marks = (index) => (copied[index] && byId("copies").checked ? "copied" : "");
  text.isSurprise = (index) => bitsAt(data.reading, index) >= scale.surprising;
  pane.more = (index) => (view === "unit" ? units.tells(index) : "");
  const units = new Units(data.units, () => {
    byId("views").querySelector("[value=unit]").click();
    toText();
  });

  const views = {
    surprise: {
      label: "Surprise",
      value: () => (index) => bitsAt(data.reading, index),
      shade: scale.shade,
      words: ["0 bits", `${scale.most} bits or more`],
      color: `${guesses} orange: it was surprised.`,
    },
    entropy: {
      label: "Uncertainty",
      value: () => (index) => (Number.isNaN(bitsAt(data.reading, index)) ? NaN : data.reading.entropy[index] / 1000),
      shade: scale.shade,
      words: ["sure", "unsure"],
      color: `${guesses} orange: it was unsure.`,
    },
    unit: { label: "Unit", value: () => units.value(), shade: signedShade },
    compare: {
      label: "Compare",
      isSigned: true,
      value: () => (index) => -advantage(data, index),
      shade: (value) => (Number.isNaN(value) ? 0 : signedShade(value / 4)),
      words: [`${data.name} better`, `${data.compare?.name} better`],
      color: `${guesses} blue: it was less surprised than ${data.compare?.name}; orange: more.`,
    },
  };
  if (!data.units.length) delete views.unit;
  if (!data.compare) delete views.compare;

  function setView(name) {
    view = name;
    const { value, shade, isSigned, words, color } = { ...views[name], ...(name === "unit" && units.colored()) };
    const valueAt = value();
    byId("story").textContent = `${story(data)} ${color}`;
    text.shade = (index) => shade(valueAt(index));
    text.redraw();
    strip.show(valueAt, Boolean(isSigned));
    byId("unit-bar").hidden = name !== "unit";
    fillLegend(byId("legend"), words, Boolean(isSigned));
    if (text.selected >= 0) pane.tell(text.selected);
  }

  /** On a narrow screen, where the text may be out of sight, scroll the page to it. */
  function toText() {
    if (pane.box.getBoundingClientRect().bottom < 100) pane.box.scrollIntoView();
  }

  function go(start, size) {
    text.frame([start, start + size - 1]);
    text.select(start);
    text.scrollTo(start, true);
    toText();
  }

  byId("name").textContent = data.name;
  const facts = [
    data.kind,
    `${whole(data.parameters)} parameters`,
    data.step ? `${whole(data.step)} updates` : "",
    `${data.bits.toFixed(3)} bits per ${data.symbol} of ${data.shown}`,
    data.compare ? `${data.compare.name}: ${data.compare.bits.toFixed(3)} bits` : "",
    `${whole(length)} ${data.symbol}s`,
  ];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  const total = data.copied.reduce((sum, [, size]) => sum + size, 0);
  const share = ((100 * total) / length).toFixed(1);
  byId("copies-says").textContent = `underline what the training text has word for word: ${share} % in stretches of 20 or more`;
  byId("copies").addEventListener("change", () => text.redraw());
  byId("copies").parentElement.hidden = !data.copied.length;
  fillWords(byId("words"), data.characters, data.words, go);
  if (data.memory.curve.length) fillMemory(models, data.symbol);
  if (data.gradients) fillGradients(models, data.symbol);
  if (data.compare) fillCompared(data, go);
  const cards = { units: data.units.length, compared: data.compare, words: data.words.length };
  Object.assign(cards, { memory: data.memory.curve.length, gradients: data.gradients });
  for (const [name, has] of Object.entries(cards)) byId(`${name}-card`).hidden = !has;
  text.show(data.characters);
  choice(byId("views"), Object.entries(views).map(([name, { label }]) => [name, label]), data.compare ? "compare" : "surprise", setView);
  pane.tell(0); // so that the card has its height
  text.select(strongest(data.reading, text.sight(uncovered(pane))));
}

/** How many pixels of a pane's text are on the screen; on a narrow one the prediction covers its lower part. */
function uncovered({ box, card }) {
  const isSheet = getComputedStyle(card).position === "fixed";
  const bottom = isSheet ? card.getBoundingClientRect().top : innerHeight;
  const { top, height } = box.getBoundingClientRect();
  return Math.min(height, bottom - top) - parseFloat(getComputedStyle(box).paddingTop);
}

/** Where the surprise is strongest among the characters in sight, or among the first ones if there are few. */
function strongest(reading, [from, to]) {
  const bits = (index) => (Number.isNaN(bitsAt(reading, index)) ? -1 : bitsAt(reading, index));
  const last = Math.max(to, Math.min(from + ENOUGH, reading.bits.length - 1));
  let best = from;
  for (let index = from; index <= last; index++) if (bits(index) > bits(best)) best = index;
  return best;
}

showPage(show);
