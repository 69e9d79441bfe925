// Requests to the instance; a failure is a `Problem`.

import { parse } from "./json.js";

class Problem extends Error {
	constructor(status, body) {
		super(body?.error?.message ?? `The instance answered ${status}.`);
		this.status = status;
		this.body = body;
	}
}

export const at = (...names) => `/v1/${names.map(encodeURIComponent).join("/")}`;

export const get = (path, query) => ask("GET", path + asQuery(query));
export const post = (path, body = {}) => ask("POST", path, body);
export const patch = (path, body) => ask("PATCH", path, body);
export const remove = (path) => ask("DELETE", path);

async function ask(method, path, body) {
	const answer = await send(method, path, body, "application/json");
	const said = await read(answer);
	if (!answer.ok) throw new Problem(answer.status, said);
	return said;
}

async function read(answer) {
	try {
		return parse(await answer.text());
	} catch {
		return null;
	}
}

async function send(method, path, body, accept) {
	const request = { method, headers: { Accept: accept } };
	if (body !== undefined) {
		request.headers["Content-Type"] = "application/json";
		request.body = JSON.stringify(body);
	}
	try {
		return await fetch(path, request);
	} catch {
		throw new Problem(0, { error: { message: "The instance does not answer." } });
	}
}

function asQuery(query = {}) {
	const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
	return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Run a tool; `onEvent` gets its events. */
export async function call(body, onEvent) {
	const answer = await send("POST", "/v1/calls", body, "text/event-stream");
	if (!answer.ok) throw new Problem(answer.status, await read(answer));
	for await (const { kind, data } of serverSentEvents(answer.body)) {
		if (kind === "result") return data;
		onEvent(data);
	}
	throw new Problem(0, { error: { message: "The connection broke before the call ended." } });
}

async function* serverSentEvents(body) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const { value, done } = await reader.read();
		if (done) return;
		const blocks = (rest + value).split("\n\n");
		rest = blocks.pop();
		for (const block of blocks) {
			const lines = block.split("\n");
			const find = (name) => lines.find((line) => line.startsWith(name))?.slice(name.length);
			yield { kind: find("event: "), data: parse(find("data: ")) };
		}
	}
}
