// Tokens and cost of a model's replies.

import { count } from "./text.js";

/** The sum of a session's replies; `cost` is null if the price is unknown. */
export function usageOf(events) {
	const sum = { model: null, input: 0, output: 0, cost: null };
	for (const { type, payload } of events) {
		if (type !== "llm.call_completed") continue;
		sum.model = payload.model ?? sum.model;
		sum.input += payload.input_tokens ?? 0;
		sum.output += payload.output_tokens ?? 0;
		if (payload.cost_usd != null) sum.cost = (sum.cost ?? 0) + payload.cost_usd;
	}
	return sum;
}

export const money = (dollars) => (dollars === null ? "no price set"
	: `$${dollars.toFixed(dollars < 0.1 ? 4 : 2)}`);

/** Tokens and cost in one line. */
export const spent = ({ input, output, cost }) =>
	`${count(input, "token")} in, ${output.toLocaleString("en")} out · ${money(cost)}`;
