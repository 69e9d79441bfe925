// Codes of the record, in words. What has none of its own is shown without its underscores.

const DECIDED = {
  always_asked: "the tool itself", budget: "a budget",
  budget_unknown: "a budget whose count cannot be read", class_default: "the setting for its effect",
  destructive: "the tool, which is destructive", mode_none: "the mode", mode_read: "the mode",
  mode_write: "the mode", mode_guarded: "the mode", untrusted_destination: "the guard",
  private_outward: "the guard", secret_outward: "the guard", network: "the setting for the network", per_tool: "the setting for this tool",
  repaired: "the model's text, which had to be mended", rule: "a rule",
  settings_invalid: "settings that cannot be used", trusted_caller: "who calls",
  trusted_override: "the setting for trusted workspaces", trusted_workspace: "the workspace, which is trusted",
};
const ENDED = { tool_reported: "The tool reported a failure." };

const spaced = (code) => code.replaceAll("_", " ");

/** What decided: a code, and behind it in brackets where that is written. */
export const decidedBy = (text) => text.replace(/^\w+/, (code) => DECIDED[code] ?? spaced(code));

/** Why a call ended as it did. */
export const endedBecause = (code) => ENDED[code] ?? (/^\w+$/.test(code) ? spaced(code) : code);
