// The address `#/view/id?name=value`: a link for every state of the page.

import { useEffect, useState } from "./ui.js";

export function here() {
	const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
	const [view = "", id = ""] = path.split("/");
	return { view: view || "live", id: decode(id), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(text) {
	try {
		return decodeURIComponent(text);
	} catch {
		return text;
	}
}

export function href(view, id = "", query = {}) {
	const given = Object.entries(query).filter(([, value]) => value);
	const tail = given.length ? `?${new URLSearchParams(given)}` : "";
	return `#/${view}${id ? `/${encodeURIComponent(id)}` : ""}${tail}`;
}

export function go(view, id, query) {
	location.hash = href(view, id, query);
}

/** Change the query without a step in the browser's history. */
export function setQuery(changes) {
	const { view, id, query } = here();
	history.replaceState(null, "", href(view, id, { ...query, ...changes }));
	dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
	const [route, setRoute] = useState(here);
	useEffect(() => {
		const follow = () => setRoute(here());
		addEventListener("hashchange", follow);
		return () => removeEventListener("hashchange", follow);
	}, []);
	return route;
}
