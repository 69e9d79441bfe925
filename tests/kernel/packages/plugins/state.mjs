// Counts in the session's state.

export default {
  init: ({ config }) => ({ count: config.start ?? 0 }),
  tools: [
    {
      name: "add",
      run({ by }, { state }) {
        state.count += by;
        return state.count;
      },
    },
    { name: "reset", run: (_, context) => void (context.state = {}) },
    {
      name: "fail",
      run(_, { state }) {
        state.count = -1;
        throw new Error("after it changed the state");
      },
    },
  ],
};
