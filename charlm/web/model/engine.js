// Runs a model: one id in, the logits of the next one out.

import { accelerate } from "./kernel.js";
import { KINDS } from "./kinds.js";
import { Matrix } from "./matrix.js";
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

async function unpackLayer(layer) {
  const entries = Object.entries(layer).map(async ([name, parameter]) => [name, await unpackParameter(parameter)]);
  return Object.fromEntries(await Promise.all(entries));
}

/** The model of the page's JSON, ready to read. */
export async function openModel(data) {
  const [layers, output, outputBias, embedding] = await Promise.all([
    Promise.all(data.layers.map(unpackLayer)),
    unpackParameter(data.output),
    unpackParameter(data.outputBias),
    data.embedding && unpackParameter(data.embedding),
  ]);
  const multiplied = [output, ...layers.flatMap(Object.values).flat()].filter((each) => each instanceof Matrix);
  const whyPlain = await accelerate(multiplied, data.kernel).then(() => null, String);
  return new Model(data, { layers, output, outputBias, embedding: data.tied ? output : embedding, whyPlain });
}

class Model {
  constructor(data, { layers, output, outputBias, embedding, whyPlain }) {
    const Kind = KINDS[data.kind];
    this.backend = whyPlain ? "JavaScript" : "WebAssembly";
    this.whyPlain = whyPlain; // why there is no WebAssembly; null if there is
    this.size = output.rows;
    this.kind = Kind;
    this.hidden = data.hidden;
    this.begins = data.begins;
    this.residual = data.residual;
    this.cells = layers.map((parameters) => new Kind(parameters, data.options, data.zoneout));
    this.inputs = layers.map((parameters) => parameters.weight_ih);
    this.embedding = embedding;
    this.output = output;
    this.outputBias = outputBias;
    this.logits = new Float32Array(this.size);
    this.ofId = new Array(this.size); // the first layer's sums of input and bias, each made when it is needed first
    this.sums = this.cells.map((cell) => new Float32Array(cell.inputBias.length));
    this.outputs = new Float32Array(this.hidden);
  }

  /** The zero state: the vectors of each layer, by name. */
  start() {
    const vectors = () => this.kind.states.map((name) => [name, new Float32Array(this.hidden)]);
    return this.cells.map(() => Object.fromEntries(vectors()));
  }

  copy(state) {
    return state.map((layer) => Object.fromEntries(Object.entries(layer).map(([name, values]) => [name, values.slice()])));
  }

  /** Reads one id, changes `state` in place; returns the logits of the next id, valid until the next read. */
  read(state, id) {
    if (id === this.begins) for (const layer of state) for (const name of this.kind.states) layer[name].fill(0);
    const y = this.outputs;
    for (let layer = 0; layer < this.cells.length; layer++) {
      this.cells[layer].step(layer ? this.sumOf(layer, y) : this.sumOfId(id), state[layer]);
      // With residual connections, a layer above the first adds its input to its output.
      const own = state[layer][this.kind.states[0]];
      if (!layer || !this.residual) y.set(own);
      else for (let unit = 0; unit < y.length; unit++) y[unit] += own[unit];
    }
    return this.sum(this.output, y, this.outputBias, this.logits);
  }

  /** What people look at: [{ layer, name, values }], copies. */
  units(state) {
    return state.flatMap((layer, place) =>
      Object.entries(this.shown(layer)).map(([name, values]) => ({ layer: place + 1, name, values: values.slice() })),
    );
  }

  /** The same of the state of one layer, by name, not copied. */
  shown(layer) {
    return this.kind.shown ? this.kind.shown(layer) : layer;
  }

  sumOf(layer, y) {
    return this.sum(this.inputs[layer], y, this.cells[layer].inputBias, this.sums[layer]);
  }

  /** The input of the first layer: an embedding, or one-hot, which takes a column of the weights. */
  sumOfId(id) {
    if (!this.ofId[id]) {
      const weights = this.inputs[0];
      const product = this.embedding ? weights.multiply(this.embedding.row(id)) : weights.column(id);
      this.ofId[id] = product.map((value, row) => value + this.cells[0].inputBias[row]);
    }
    return this.ofId[id];
  }

  /** W x + b, written to `sum`. */
  sum(matrix, x, bias, sum) {
    const product = matrix.multiply(x);
    for (let row = 0; row < sum.length; row++) sum[row] = product[row] + bias[row];
    return sum;
  }
}
