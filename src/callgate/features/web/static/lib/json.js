// JSON without loss, so that the screen shows exactly the arguments that run. Large integers
// keep their digits, and numbers in `arguments` keep their spelling (1.0 is not 1).

const isWide = (value, source) => !Number.isSafeInteger(value) && /^-?\d+$/.test(source);

export function parse(text) {
	const spelled = new Map(); // numbers that are spelled differently -> value
	function keep(_, value, context) {
		if (typeof value !== "number" || !context || !JSON.rawJSON || String(value) === context.source) {
			return value;
		}
		const raw = JSON.rawJSON(context.source);
		if (!isWide(value, context.source)) spelled.set(raw, value);
		return raw;
	}
	const read = JSON.parse(text, keep);
	return spelled.size ? reckonable(read, spelled) : read;
}

function reckonable(value, spelled) {
	if (value === null || typeof value !== "object") return value;
	if (JSON.isRawJSON(value)) return spelled.get(value) ?? value;
	for (const name of Object.keys(value)) {
		if (name !== "arguments") value[name] = reckonable(value[name], spelled);
	}
	return value;
}
