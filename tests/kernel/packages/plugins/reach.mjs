// Asks the runtime back.

export default [
  {
    name: "copy",
    async run({ source, target }, { files, sessionId }) {
      const text = await files.read(source);
      await files.write(target, text.toUpperCase());
      return [sessionId, text];
    },
  },
  {
    name: "bytes",
    async run({ source, target }, { files }) {
      const bytes = await files.readBytes(source);
      await files.write(target, bytes.reverse());
      return bytes.length;
    },
  },
  {
    name: "everything",
    async run(_, { files, isCancelled, keepArtifact }) {
      await files.append("a", "1");
      await files.patch("a", "1", "2");
      await files.delete("a");
      return [await files.exists("a"), await files.list("."), await keepArtifact("log"), await isCancelled()];
    },
  },
  {
    name: "many",
    async run({ times }, { files }) {
      const found = await Promise.all([...Array(times).keys()].map((n) => files.exists(`${n}`)));
      return found.filter(Boolean).length;
    },
  },
  {
    name: "refused",
    run: (_, { files }) => files.read("x").catch(({ name, message, reason = null }) => [name, message, reason]),
  },
];
