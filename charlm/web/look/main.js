// Puts the page together: what the colors show, and what happens when something is chosen.

import { fillLegend, signedShade, surpriseScale } from "../shared/colors.js";
import { byId, choice, showPage } from "../shared/elements.js";
import { story, whole } from "../shared/numbers.js";
import { bitsAt, Pane } from "../shared/prediction.js";
import { advantage, fillCompared, fillGradients, fillMemory, fillWords } from "./cards.js";
import { Strip } from "./strip.js";
import { Units } from "./units.js";

const FIRST = 200; // characters among which the one is that is shown first

function show(data) {
  data.characters = Array.from(data.text);
  const models = data.compare ? [data, data.compare] : [data];
  const { length } = data.characters;
  const scale = surpriseScale(data.characters.map((_, index) => bitsAt(data.reading, index)));
  const guesses = `It guesses every next ${data.symbol};`;
  let view = "";

  const strip = new Strip(byId("strip"), length, (index) => text.scrollTo(index, "center"));
  const label = `The text, ${whole(length)} ${data.symbol}s`;
  const pane = new Pane(data, label, "Its guesses; orange: what came.");
  const text = pane.view;
  byId("cards").prepend(pane.card);
  byId("keys").before(pane.box);
  new ResizeObserver(() => strip.look(pane.box)).observe(pane.box);
  pane.box.addEventListener("scroll", () => strip.look(pane.box));
  const copied = new Uint8Array(length);
  for (const [start, size] of data.copied) copied.fill(1, start, start + size);
  text.marks = (index) => (copied[index] && byId("copies").checked ? "copied" : "");
  text.isSurprise = (index) => bitsAt(data.reading, index) >= scale.surprising;
  pane.more = (index) => (view === "unit" ? units.tells(index) : "");
  const units = new Units(data.units, () => {
    byId("views").querySelector("[value=unit]").click();
    text.scrollTo(text.selected);
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
      value: () => (index) => data.reading.entropy[index],
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
    strip.show(valueAt);
    byId("unit-bar").hidden = name !== "unit";
    fillLegend(byId("legend"), words, Boolean(isSigned));
    if (text.selected >= 0) pane.tell(text.selected);
  }

  function go(start) {
    text.select(start);
    text.scrollTo(start, "center");
  }

  byId("name").textContent = data.name;
  const facts = [
    data.kind,
    `${whole(data.parameters)} parameters`,
    data.step ? `${whole(data.step)} updates` : "",
    data.weights,
    `${data.bits.toFixed(3)} bits per character (${data.shown})`,
    data.compare ? `${data.compare.name}: ${data.compare.bits.toFixed(3)} bits per character` : "",
    `${whole(length)} ${data.symbol}s`,
  ];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  const total = data.copied.reduce((sum, [, size]) => sum + size, 0);
  const share = ((100 * total) / length).toFixed(1);
  const unread = data.unread && `; not searched: ${data.unread}`;
  byId("copies-says").textContent = `underline what the training texts have word for word: ${share}% in stretches of 20 or more${unread}`;
  byId("copies").addEventListener("change", () => text.redraw());
  byId("copies").parentElement.hidden = !data.copied.length && !data.unread;
  fillWords(byId("words"), data.characters, data.words, go);
  if (data.memory.curve.length) fillMemory(models, data.symbol);
  if (data.gradients) fillGradients(models, data.symbol);
  if (data.compare) fillCompared(data, go);
  const cards = {
    compared: data.compare,
    units: data.units.length,
    words: data.words.length,
    memory: data.memory.curve.length,
    gradients: data.gradients,
  };
  for (const [name, has] of Object.entries(cards)) byId(`${name}-card`).hidden = !has;
  text.show(data.characters);
  choice(byId("views"), Object.entries(views).map(([name, { label }]) => [name, label]), data.compare ? "compare" : "surprise", setView);
  const first = strongest(data.reading);
  text.select(first);
  // On a narrow screen the prediction covers the lower part of the text.
  text.scrollTo(first, getComputedStyle(pane.card).position === "fixed" ? "start" : "nearest");
  scrollTo(0, 0);
  if (pane.isInTheWay) pane.close();
}

/** Where the surprise is strongest at the beginning of the text. */
function strongest({ bits }) {
  const first = Array.from(bits.slice(0, FIRST), (_, index) => bitsAt({ bits }, index) || 0);
  return first.reduce((best, each, index) => (each > first[best] ? index : best), 0);
}

showPage(show);
