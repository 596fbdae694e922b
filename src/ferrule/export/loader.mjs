// Runs a function that was exported by ferrule as WebAssembly, in a browser or in Node.
//
//   import { load } from "./classify.mjs";
//   const classify = await load(fetch("classify.wasm"));   // or its bytes
//   const { result } = classify({ x: pixels });            // typed arrays, in the order of a C array
//
// Variables are numbers in the same object: generate({ x, position: 3 }). What a function keeps from
// call to call is in `classify.states`, as typed arrays; each `load` has states of its own.

const ARRAYS = {
  bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
  float16: Uint16Array, bfloat16: Uint16Array, float32: Float32Array, float64: Float64Array,
};

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
    for (const one of about.arguments) {
      const values = given[one.name], place = view(one);
      if (values === undefined) throw new Error(`${about.name}: ${one.name} is missing`);
      const isWhole = one.shape.every(Number.isInteger);
      if (values.length > place.length || (isWhole && values.length !== place.length)) {
        throw new Error(`${one.name} has ${values.length} elements; it takes ${one.shape}`);
      }
      place.set(values);
    }
    const values = about.variables.map(({ name }) => given[name]);
    if (!values.every(Number.isInteger) || run(...values) !== 0) {
      throw new Error(`${about.name}: a variable is missing, or out of its bounds`);
    }
    return Object.fromEntries(about.results.map((one) => [one.name, view(one).slice()]));
  };
  return Object.assign(call, { about, states: views(about.states) });
}
