// Runs a model: one id in, the logits of the next one out.

import { Kernel, Matrix } from "./matrix.js";
import { Layer } from "./layer.js";

/** A parameter of the data: a matrix, a list of matrices, or a vector. */
function parameterOf(data) {
  if (Array.isArray(data)) return data.map(parameterOf);
  return data?.rows ? new Matrix(data) : data;
}

/** The model of the page's data, ready to read. */
export async function openModel(data) {
  const kernel = await Kernel.open(data.kernel);
  const [projection, output, embedding] = [data.projection, data.output, data.embedding].map(parameterOf);
  const parameters = data.layers.map((layer) => {
    return Object.fromEntries(Object.entries(layer).map(([name, each]) => [name, parameterOf(each)]));
  });
  const all = [projection, output, embedding, ...parameters.flatMap(Object.values).flat()];
  const matrices = all.filter((parameter) => parameter instanceof Matrix);
  kernel.reserve(matrices);
  for (const matrix of matrices) matrix.move(kernel);
  const programOf = (index) => data.programs[Math.min(index, data.programs.length - 1)];
  const layers = parameters.map((ofLayer, index) => new Layer(programOf(index), ofLayer));
  return new Model(data, { layers, projection, output, embedding: data.tied ? output : embedding });
}

class Model {
  constructor(data, { layers, projection, output, embedding }) {
    this.size = output.rows;
    this.hidden = data.hidden;
    this.begins = data.begins;
    this.residual = data.residual;
    this.layers = layers;
    this.embedding = embedding;
    this.projection = projection; // of the outputs, where the embedding is the output matrix but has another size
    this.output = output;
    this.outputBias = data.outputBias;
    this.logits = new Float32Array(this.size);
    this.ofId = new Array(this.size); // what the first layer computes of an id alone, when it is needed first
    this.outputs = new Float32Array(this.hidden);
  }

  /** The initial state of each layer. */
  start() {
    return this.layers.map((layer) => layer.start());
  }

  copy(state) {
    return structuredClone(state);
  }

  /** Reads one id, changes `state` in place; returns the logits of the next id, valid until the next read. */
  read(state, id) {
    if (id === this.begins) Object.assign(state, this.start());
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

  /** What people look at in a layer, by name, not copied. */
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
