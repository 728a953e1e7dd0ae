// A layer of a recurrent cell, computed from the cell's program: see charlm/cells/program.py; operations.js has its operations.
//
// Every node of the program has its own array, and a loop over its units that fills it. Parts, and rows of
// parameters, are views. So a page runs any cell without code of its own, and without eval.

import { Matrix } from "./matrix.js";
import { UNIT_BY_UNIT } from "./operations.js";

const [WINDOW, LOOP] = [1, 2]; // stages: what depends on the input alone, and what depends on the state

/** (v − mean v) / √(var v + ε), or without the mean. */
function normalize(y, v, epsilon, centered) {
  const size = y.length;
  let mean = 0;
  let square = 0;
  if (centered) for (let u = 0; u < size; u++) mean += v[u] / size;
  for (let u = 0; u < size; u++) square += (v[u] - mean) ** 2 / size;
  const scale = 1 / Math.sqrt(square + epsilon);
  for (let u = 0; u < size; u++) y[u] = (v[u] - mean) * scale;
}

/** The array of a node: a view where nothing is computed. */
function arrayOf({ op, length, start, number, name }, [first], parameters) {
  if (op === "vector") return parameters[name].subarray(start, start + length);
  if (op === "part") return first.subarray(start, start + length);
  return new Float32Array(length).fill(op === "constant" ? number : 0);
}

/** A function that fills the array of a node; none if there is nothing to compute. */
function loopOf({ op, index, number, name, transposed }, y, args, parameters) {
  const [a, b, c] = args;
  if (op === "product") {
    const matrix = parameters[name] instanceof Matrix ? parameters[name] : parameters[name][index];
    if (transposed) return () => matrix.multiplyTransposed(y, a);
    return () => y.set(matrix.multiply(a));
  }
  if (op === "normalize") return () => normalize(y, a, number, index === 0);
  const loop = UNIT_BY_UNIT[op];
  return loop && (() => loop(y, a, b, c));
}

export class Layer {
  /** parameters: by name; a matrix is a Matrix, a stack of them a list, all others are flat arrays. */
  constructor({ nodes, states, shown }, parameters) {
    const values = [];
    const stages = [[], [], []];
    for (const node of nodes) {
      const args = node.args.map((arg) => values[arg]);
      const y = arrayOf(node, args, parameters);
      const loop = loopOf(node, y, args, parameters);
      if (loop) stages[node.stage].push(loop);
      values.push(y);
    }
    for (const loop of stages[0]) loop();
    const read = new Set(nodes.filter(({ stage }) => stage === LOOP).flatMap(({ args }) => args));
    for (const index of [...states.map(({ result }) => result), ...Object.values(shown)]) read.add(index);
    const find = (op, name) => values[nodes.findIndex((node) => node.op === op && node.name === name)];
    this.stages = stages;
    this.input = find("input", "");
    /** What the loop reads of what depends on the input alone. */
    this.windows = values.filter((_, index) => nodes[index].stage === WINDOW && read.has(index));
    this.states = states.map(({ name, result, internal, start }) => {
      const after = values[result];
      const first = new Float32Array(after.length); // the initial state: zeros, or a row of the parameter
      if (start !== null) first.set(parameters.start.subarray(start * after.length, (start + 1) * after.length));
      return { name, internal, first, before: find("state", name), after };
    });
    this.shown = Object.entries(shown).map(([name, index]) => ({ name, values: values[index] }));
  }

  /** The initial state: the states, and zeros for the other values that people look at, by name. */
  start() {
    const states = this.states.map(({ name, first }) => [name, first.slice()]);
    const shown = this.shown.map(({ name, values }) => [name, new Float32Array(values.length)]);
    return { states: Object.fromEntries(states), shown: Object.fromEntries(shown) };
  }

  /** Computes all that depends on the input x alone. */
  read(x) {
    this.input?.set(x);
    for (const loop of this.stages[WINDOW]) loop();
  }

  /** One step from the input that was read; changes the state in place, whose first vector is the output. */
  step({ states, shown }) {
    for (const { name, before } of this.states) before?.set(states[name]);
    for (const loop of this.stages[LOOP]) loop();
    for (const { name, after } of this.states) states[name].set(after);
    for (const { name, values } of this.shown) shown[name].set(values);
  }

  /** What people look at in a state of this layer, by name. */
  lookAt({ states, shown }) {
    const visible = this.states.filter(({ internal }) => !internal).map(({ name }) => [name, states[name]]);
    return { ...Object.fromEntries(visible), ...shown };
  }
}
