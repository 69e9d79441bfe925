// Saving a rule: a call that needs approval, here or in the inbox.

import { post } from "./api.js";
import { useQuestions } from "./questions.js";
import { useState } from "./ui.js";

export function useRuleSaving(onSaved) {
	const asked = useQuestions((each) => each.tool === "save_rule", { ownGo: true });
	const [told, setTold] = useState(null);
	const [problem, setProblem] = useState(null);
	async function save(rule) {
		setProblem(null);
		setTold("Asking…");
		try {
			const result = await post("/v1/policy/rules", rule);
			setTold(result.content.map((block) => block.text ?? "").join("\n"));
			onSaved(rule);
		} catch (failure) {
			setTold(null);
			setProblem(failure);
		}
	}
	return { save, asked, told, problem };
}
