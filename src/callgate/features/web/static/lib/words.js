// Words for the codes of the audit log. Other codes are shown without their underscores.

const DECIDED = {
	always_asked: "the tool, which always needs approval", budget: "a budget",
	budget_unknown: "a budget whose count is unreadable", class_default: "the setting for its effect",
	destructive: "the tool, which is destructive", network: "the setting for the network",
	per_tool: "the setting for this tool", read_commands: "the setting for commands that only read",
	reversible: "the setting for calls that can be undone",
	repaired: "the model's text, which was repaired",
	rule: "a rule", settings_invalid: "the settings, which are invalid", trusted_caller: "the trusted caller",
	trusted_override: "the setting for trusted workspaces", trusted_workspace: "the workspace, which is trusted",
};
const ENDED = {
	changed_while_waiting: "changed while it waited", confirmation_timeout: "no answer in time",
	file_not_found: "no such file", mode_none: "not in mode none", mode_read: "not in mode read",
	no_confirmer: "no approver", path_rule: "rule for this path", policy_deny: "denied by policy",
	protected_path: "protected path", read_only_root: "read-only directory",
	sandbox_unavailable: "no sandbox available", settings_invalid: "invalid settings",
	tool_reported: "The tool reported a failure.", user_denied: "denied by the approver",
	workspace_escape: "outside the workspace",
};

const spaced = (code) => code.replaceAll("_", " ");
const own = (words, code) => (Object.hasOwn(words, code) ? words[code] : null);

/** The reason of a decision: a code, and its origin in brackets. */
export const decidedBy = (text) => text.replace(/^\w+/, (code) => own(DECIDED, code)
	?? (/^mode_/.test(code) ? "the mode" : /_(destination|outward)$/.test(code) ? "the guard" : spaced(code)));

/** The reason of a call's end. */
export const endedBecause = (code) => own(ENDED, code) ?? (/^\w+$/.test(code) ? spaced(code) : code);

/** The reason of a failure or refusal, for the call's row; a rule with its file and line. */
export function whyOf({ state, reason, policy = "", error_class: error, message }) {
	if (!["denied", "failed", "invalid"].includes(state)) return null;
	const rule = /^rule \((?:.*\/)?([^/]+)\)$/.exec(policy);
	if (reason === "policy_deny" && rule) return `rule in ${rule[1]}`;
	if (reason === "policy_deny" && policy) return decidedBy(policy.replace(/ \(.*/, ""));
	if (reason && own(ENDED, reason)) return ENDED[reason];
	const told = message?.replace(/^Invalid arguments: /, "").split("\n", 1)[0];
	return told || (error ? spaced(error) : null);
}

const FILES = "it can change files in the workspace, and";
const SANDBOXES = {
	read: "it can read the workspace, change nothing, and has no network", workspace: `${FILES} has no network`,
	"workspace, with network": `${FILES} reach every host`,
	"workspace, with a loopback of its own": `${FILES} has no network but its own`,
};

/** The sandbox of a command as `{isOff, hasNetwork, line}`; `text` is from the question. */
export function sandboxOf(text) {
	const [inside, instead] = text.split(", instead of ");
	if (inside === "off" || inside === "open") {
		return { isOff: true, hasNetwork: true, line: "Runs without a sandbox: it can do everything that you can." };
	}
	if (inside.endsWith("outside the sandbox")) {
		return { isOff: true, hasNetwork: true, line: `Runs in ${inside}.` };
	}
	const hosts = /^workspace, with network: (.*)$/s.exec(inside)?.[1];
	const can = hosts ? `${FILES} reach ${hosts}`
		: own(SANDBOXES, inside) ?? inside;
	return { isOff: false, hasNetwork: /with network/.test(inside),
		line: `Runs in the sandbox: ${can}${instead ? `. It replaces ${instead}` : ""}.` };
}

/** A session in a few words: its title, or its first call. */
export const titleOf = (session) => session?.title
	|| (session?.first_tool ? `Call of ${session.first_tool}` : "Session without calls");
