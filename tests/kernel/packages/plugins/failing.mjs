// Fails in many ways.

const cycle = {};
cycle.cycle = cycle;
const deep = (levels) => (levels ? [deep(levels - 1)] : 0);

const unsayable = {
  cycle: () => cycle,
  deep: () => deep(100),
  deeper: () => [...Array(100_000)].reduce((inner) => [inner], 0),
  infinity: () => ({ a: [-Infinity] }),
  nan: () => NaN,
  object: () => 1n,
  surrogate: () => "\ud800",
};

export default [
  {
    name: "raise",
    run({ type, message }) {
      throw Object.assign(new Error(message), { name: type });
    },
  },
  { name: "reject", run: ({ message }) => Promise.reject(new Error(message)) },
  { name: "see", run: ({ error }) => ({ success: false, error }) },
  { name: "unsayable", run: ({ kind }) => unsayable[kind]() },
  { name: "emit", run: ({ kind }, { emit }) => emit({ type: "part", payload: unsayable[kind]() }) },
];
