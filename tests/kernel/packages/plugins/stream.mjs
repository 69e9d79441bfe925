// Says things while it works.

const late = [];

export default {
  tools: [
    {
      name: "count",
      run({ parts, size }, { emit }) {
        const pad = size && "x".repeat(size);
        for (let n = 0; n < parts; n++) emit({ type: "part", payload: { n, pad } });
        return parts;
      },
    },
    {
      name: "say",
      run(_, context) {
        context.progress("half", 0.5);
        context.log("opened", "debug");
        context.output("line\n", "stdout");
        context({ type: "odd", payload: [1] });
        return null;
      },
    },
    { name: "leave", run: (_, { emit }) => void late.push(emit) },
    { name: "haunt", run: () => late.map((emit) => emit({ type: "part", payload: "late" })) },
  ],
};
