// A JSON Schema as the fields of a form, and the texts of a form as arguments.

import { parse } from "./json.js";

const PLAIN = new Set(["string", "integer", "number", "boolean"]);

export function fieldsOf(schema) {
	const required = new Set(schema.required ?? []);
	return Object.entries(schema.properties ?? {}).map(([name, property]) => ({
		name,
		kind: kindOf(property),
		choices: property.enum?.every((each) => typeof each === "string") ? property.enum : null,
		required: required.has(name),
		hint: property.description ?? "",
		usual: property.default,
	}));
}

function kindOf(property) {
	const named = [property.type].flat().filter((type) => type && type !== "null");
	return named.length === 1 && PLAIN.has(named[0]) ? named[0] : "json";
}

/** Arguments from the typed texts, without empty ones. Throws with the field's name. */
export function readFields(fields, typed) {
	const read = {};
	for (const field of fields) {
		const text = typed[field.name] ?? "";
		// A required text may be empty.
		if (text === "" && !(field.kind === "string" && field.required)) continue;
		read[field.name] = readOne(field, text);
	}
	return read;
}

function readOne({ name, kind }, text) {
	if (kind === "string") return text;
	if (kind === "boolean") return text === "true";
	if (kind === "json") return readJson(text, name);
	if (!/^\s*-?\d+(\.\d+)?([eE][+-]?\d+)?\s*$/.test(text)) throw new Error(`${name} is not a number.`);
	return readJson(text, name);
}

export function readJson(text, name = "JSON") {
	try {
		return parse(text);
	} catch (error) {
		throw new Error(`${name}: ${error.message}`);
	}
}

export function typedOf(fields, values) {
	return Object.fromEntries(fields.filter(({ name }) => values[name] !== undefined)
		.map(({ name, kind }) => [name, typedOne(kind, values[name])]));
}

const typedOne = (kind, value) =>
	kind !== "json" && typeof value !== "object" ? String(value) : JSON.stringify(value, null, 2);
