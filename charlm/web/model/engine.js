// Runs a model: one id in, the logits of the next one out.

import { accelerate } from "./kernel.js";
import { Matrix } from "./matrix.js";
import { Layer } from "./program.js";
import { unpackArray } from "../shared/unpack.js";

/** A parameter of the JSON: a matrix, a list of matrices, or a vector. */
async function unpackParameter(parameter) {
  if (Array.isArray(parameter)) return Promise.all(parameter.map(unpackParameter));
  if (!parameter.values) return unpackArray(parameter);
  const [values, scales] = await Promise.all([
    unpackArray(parameter.values),
    parameter.scales && unpackArray(parameter.scales),
  ]);
  return new Matrix({ ...parameter, values, scales });
}

async function unpackLayer(parameters) {
  const entries = Object.entries(parameters).map(async ([name, parameter]) => [name, await unpackParameter(parameter)]);
  return Object.fromEntries(await Promise.all(entries));
}

/** The model of the page's JSON, ready to read. */
export async function openModel(data) {
  const [parameters, projection, output, outputBias, embedding] = await Promise.all([
    Promise.all(data.layers.map(unpackLayer)),
    data.projection && unpackParameter(data.projection),
    unpackParameter(data.output),
    unpackParameter(data.outputBias),
    data.embedding && unpackParameter(data.embedding),
  ]);
  const multiplied = [projection, output, ...parameters.flatMap(Object.values).flat()].filter((parameter) => parameter instanceof Matrix);
  const whyPlain = await accelerate(multiplied, data.kernel).then(() => null, String);
  const programOf = (index) => data.programs[Math.min(index, data.programs.length - 1)];
  const layers = parameters.map((ofLayer, index) => new Layer(programOf(index), ofLayer, data.zoneout));
  const ends = { projection, output, outputBias, embedding: data.tied ? output : embedding };
  return new Model(data, { layers, ...ends, whyPlain });
}

class Model {
  constructor(data, { layers, projection, output, outputBias, embedding, whyPlain }) {
    this.backend = whyPlain ? "JavaScript" : "WebAssembly";
    this.whyPlain = whyPlain; // why there is no WebAssembly; null if there is
    this.size = output.rows;
    this.hidden = data.hidden;
    this.begins = data.begins;
    this.residual = data.residual;
    this.layers = layers;
    this.embedding = embedding;
    this.projection = projection; // of the outputs, where the embedding is the output matrix but has another size
    this.output = output;
    this.outputBias = outputBias;
    this.logits = new Float32Array(this.size);
    this.ofId = new Array(this.size); // what the first layer computes of an id alone, when it is needed first
    this.outputs = new Float32Array(this.hidden);
  }

  /** The zero state of each layer. */
  start() {
    return this.layers.map((layer) => layer.start(this.hidden));
  }

  copy(state) {
    return structuredClone(state);
  }

  /** Reads one id, changes `state` in place; returns the logits of the next id, valid until the next read. */
  read(state, id) {
    if (id === this.begins) for (const { states } of state) for (const values of Object.values(states)) values.fill(0);
    const y = this.outputs;
    this.layers.forEach((layer, index) => {
      if (index) layer.read(y);
      else this.readId(id);
      layer.step(state[index]);
      // With residual connections, a layer above the first adds its input to its output.
      const output = state[index].states[layer.states[0].name];
      if (!index || !this.residual) y.set(output);
      else for (let unit = 0; unit < y.length; unit++) y[unit] += output[unit];
    });
    const product = this.output.multiply(this.projection ? this.projection.multiply(y) : y);
    for (let row = 0; row < this.size; row++) this.logits[row] = product[row] + this.outputBias[row];
    return this.logits;
  }

  /** What people look at: [{ layer, name, values }], copies. */
  units(state) {
    return state.flatMap((_, index) =>
      Object.entries(this.shown(state, index)).map(([name, values]) => ({ layer: index + 1, name, values: values.slice() })),
    );
  }

  /** The same of one layer, by name, not copied. */
  shown(state, index) {
    return this.layers[index].lookAt(state[index]);
  }

  /** The input of the first layer: an embedding, or one-hot. */
  readId(id) {
    const [first] = this.layers;
    if (this.ofId[id]) {
      first.windows.forEach((values, index) => values.set(this.ofId[id][index]));
      return;
    }
    first.read(this.embedding ? this.embedding.row(id) : Float32Array.from({ length: this.size }, (_, unit) => unit === id));
    this.ofId[id] = first.windows.map((values) => values.slice());
  }
}
