// Gives back what it gets.

export default [
  { name: "echo", description: "Gives its arguments.", inputSchema: { type: "object" }, run: (args) => args },
  {
    name: "grow",
    description: "Gives a text of so many characters.",
    inputSchema: { type: "object", properties: { size: { type: "integer" } }, required: ["size"] },
    run: ({ size }) => "x".repeat(size),
  },
];
