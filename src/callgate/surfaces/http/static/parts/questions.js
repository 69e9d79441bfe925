// The questions of a view beside other things, as `useQuestions` gives them.

import { html } from "../lib/ui.js";
import { Question } from "./question.js";

export const Questions = ({ of: [shown, dismiss] }) => shown.map(({ question, how }) =>
  html`<${Question} key=${question.id} question=${question} how=${how} onDismiss=${dismiss} />`);
