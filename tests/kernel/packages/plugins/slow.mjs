// Takes as long as it is let.

const held = new Map();

export default [
  {
    name: "hold",
    run({ key }, { emit }) {
      emit({ type: "part", payload: "begun" });
      return new Promise((resolve) => held.set(key, resolve));
    },
  },
  {
    name: "release",
    run({ key, value }) {
      held.get(key)(value);
      return null;
    },
  },
  {
    name: "wait",
    run(_, { emit, signal }) {
      emit({ type: "part", payload: "begun" });
      return new Promise((_, reject) => {
        signal.addEventListener("abort", () => {
          emit({ type: "part", payload: "stopped" });
          reject(signal.reason);
        });
      });
    },
  },
  {
    name: "ignore",
    run(_, { emit }) {
      emit({ type: "part", payload: "begun" });
      setInterval(() => {}, 1_000); // as a server or a watcher would: Node does not exit by itself
      return new Promise(() => {});
    },
  },
];
