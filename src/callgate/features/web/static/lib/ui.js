// Tagged templates over preact, for all views. Text is always a text node.

import htm from "../vendor/htm.mjs";
import { h } from "../vendor/preact.mjs";

export { render } from "../vendor/preact.mjs";
export {
	useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/hooks.mjs";

export const html = htm.bind(h);
