// Runs a function that was exported by ferrule as WebAssembly, in a browser or in Node.
//
//   import { load } from "./classify.mjs";
//   const classify = await load(fetch("classify.wasm"));   // or its bytes
//   const { result } = classify({ x: pixels });            // typed arrays, in the order of a C array
//
// Variables are numbers in the same object: generate({ x, position: 3 }). What a function keeps from
// call to call is in `classify.states`, as typed arrays; each `load` has states of its own. Typed
// arrays that the function changes are changed.

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
  float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array, float64: Float64Array,
};

const OPERATIONS = {
  ADD: (a, b) => a + b, SUB: (a, b) => a - b, MUL: (a, b) => a * b, NEG: (a) => -a,
  IDIV: (a, b) => Math.floor(a / b), MOD: (a, b) => a - b * Math.floor(a / b),
  MIN: Math.min, MAX: Math.max, CMPLT: (a, b) => a < b, WHERE: (which, a, b) => (which ? a : b),
};

// A size: a number, the name of a variable, or an operation with its operands.
const valueOf = (size, values) =>
  Array.isArray(size) ? OPERATIONS[size[0]](...size.slice(1).map((one) => valueOf(one, values)))
    : typeof size === "string" ? values[size] : size;

// The number of elements of a tensor, and their places in memory in the order of a C array, unless
// they are there in this order.
function layout(tensor, values) {
  const shape = tensor.shape.map((size) => valueOf(size, values));
  const strides = tensor.strides.map((step) => valueOf(step, values));
  const count = shape.reduce((a, b) => a * b, 1);
  let dense = 1, isDense = true;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    isDense &&= shape[axis] === 1 || strides[axis] === dense;
    dense *= shape[axis];
  }
  if (isDense) return { shape, count };
  let places = [0];
  for (const [axis, size] of shape.entries()) {
    const steps = Array.from({ length: size }, (_, n) => n * strides[axis]);
    places = places.flatMap((start) => steps.map((further) => start + further));
  }
  return { shape, count, places };
}

export async function load(source) {
  const found = await source;
  const bytes = found instanceof Response ? await found.arrayBuffer() : found;
  const module = await WebAssembly.compile(bytes);
  const [section] = WebAssembly.Module.customSections(module, "ferrule");
  const about = JSON.parse(new TextDecoder().decode(section));
  if (about.interface !== 1) throw new Error(`interface ${about.interface} is not known here`);
  const { memory, run } = (await WebAssembly.instantiate(module, {})).exports;
  const view = ({ dtype, address, length }) =>
    new (ARRAYS[dtype] ?? Uint8Array)(memory.buffer, address, length);
  const views = (tensors) => Object.fromEntries(tensors.map((one) => [one.name, view(one)]));

  const call = (given) => {
    for (const { name, min, max } of about.variables) {
      if (!Number.isInteger(given[name]) || given[name] < min || given[name] > max) {
        throw new Error(`${about.name}: ${name} is ${given[name]}, not from ${min} to ${max}`);
      }
    }
    for (const one of about.arguments) {
      const values = given[one.name], memory = view(one);
      const { shape, count, places } = layout(one, given);
      if (values === undefined) throw new Error(`${about.name}: ${one.name} is missing`);
      if (values.length !== count) {
        throw new Error(`${one.name} has ${values.length} elements; it takes ${shape}`);
      }
      if (places) places.forEach((place, n) => (memory[place] = values[n]));
      else memory.set(values);
    }
    if (run(...about.variables.map(({ name }) => given[name])) !== 0) {
      throw new Error(`${about.name}: these variables do not go together`);
    }
    const contents = (one) => {
      const { count, places } = layout(one, given), memory = view(one);
      return places ? memory.constructor.from(places, (place) => memory[place])
        : memory.slice(0, count);
    };
    for (const one of about.arguments.filter(({ changed }) => changed)) {
      contents(one).forEach((value, n) => (given[one.name][n] = value));
    }
    return Object.fromEntries(about.results.map((one) => [one.name, contents(one)]));
  };
  return Object.assign(call, { about, states: views(about.states) });
}
