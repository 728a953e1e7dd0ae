// The operations of a program, printed from charlm/cells/operations.py: each fills y, unit by unit.

export const UNIT_BY_UNIT = {
  exp: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = Math.exp(a[u]); },
  log: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = Math.log(a[u]); },
  tanh: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = 2 / (1 + Math.exp(-2 * a[u])) - 1; },
  sigmoid: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = 1 / (1 + Math.exp(-a[u])); },
  softplus: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = Math.max(a[u], 0) + Math.log1p(Math.exp(-Math.abs(a[u]))); },
  relu: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = Math.max(a[u], 0); },
  sqrt: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = Math.sqrt(a[u]); },
  add: (y, a, b) => { for (let u = 0; u < y.length; u++) y[u] = a[u] + b[u]; },
  sub: (y, a, b) => { for (let u = 0; u < y.length; u++) y[u] = a[u] - b[u]; },
  mul: (y, a, b) => { for (let u = 0; u < y.length; u++) y[u] = a[u] * b[u]; },
  div: (y, a, b) => { for (let u = 0; u < y.length; u++) y[u] = a[u] / b[u]; },
  max: (y, a, b) => { for (let u = 0; u < y.length; u++) y[u] = Math.max(a[u], b[u]); },
  min: (y, a, b) => { for (let u = 0; u < y.length; u++) y[u] = Math.min(a[u], b[u]); },
  greater: (y, a, b) => { for (let u = 0; u < y.length; u++) y[u] = a[u] > b[u] ? 1 : 0; },
  where: (y, a, b, c) => { for (let u = 0; u < y.length; u++) y[u] = a[u] ? b[u] : c[u]; },
  stop: (y, a) => { for (let u = 0; u < y.length; u++) y[u] = a[u]; },
};
