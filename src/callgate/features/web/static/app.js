// The frame around the views.

import { useKeys } from "./lib/keys.js";
import { href, useRoute } from "./lib/router.js";
import { start, useStore } from "./lib/store.js";
import { applyTheme, nextTheme, theme } from "./lib/theme.js";
import { html, render, useEffect, useRef, useState } from "./lib/ui.js";
import { Copy, asLine } from "./parts/basics.js";
import { Chat } from "./views/chat.js";
import { Hosts } from "./views/hosts.js";
import { Inbox } from "./views/inbox.js";
import { Live } from "./views/live.js";
import { Policy } from "./views/policy.js";
import { Session } from "./views/session.js";
import { Sessions } from "./views/sessions.js";
import { Stats } from "./views/stats.js";
import { SuggestedRules } from "./views/suggestions.js";
import { Tools } from "./views/tools.js";

const VIEWS = {
	live: { name: "Live", draw: Live, key: "1" },
	inbox: { name: "Inbox", draw: Inbox, key: "2" },
	chat: { name: "Chat", draw: Chat, key: "3" },
	sessions: { name: "Sessions", draw: Sessions, key: "4" },
	tools: { name: "Tools", draw: Tools, key: "5" },
	hosts: { name: "Hosts", draw: Hosts, key: "6" },
	policy: { name: "Policy", draw: Policy, key: "7" },
	stats: { name: "Stats", draw: Stats, key: "8" },
	suggestions: { name: "Suggested rules", draw: SuggestedRules, within: "policy" },
	session: { name: "Session", draw: Session, within: "sessions" },
};

const UNKNOWN = { name: "Not found", draw: NotFound };

function App() {
	const route = useRoute();
	const { questions, link, loaded } = useStore();
	const isOut = link === "locked" && !loaded;
	const main = useRef(null);
	const [help, setHelp] = useState(false);
	const view = Object.hasOwn(VIEWS, route.view) ? VIEWS[route.view] : UNKNOWN;
	const waiting = questions.size;

	useEffect(() => {
		document.title = `${waiting ? `(${waiting}) ` : ""}${isOut ? "Logged out" : view.name} · callgate`;
	}, [waiting, view, isOut]);
	// On a phone the row of views is wider than the screen.
	useEffect(() => {
		document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
	}, [route.view]);
	// A screen reader reads the name of the new view.
	const first = useRef(true);
	useEffect(() => {
		const within = main.current?.contains(document.activeElement);
		if (!first.current && !within) main.current?.focus({ preventScroll: true });
		first.current = false;
	}, [route.view, route.id]);

	const numbers = Object.entries(VIEWS).filter(([, each]) => each.key)
		.map(([name, each]) => [each.key, () => { location.hash = href(name); }]);
	useKeys({ ...Object.fromEntries(numbers), "?": () => setHelp(!help) });

	if (isOut) return html`<${LoggedOut} />`;
	return html`<div class="frame">
		<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>
			Skip to the view</a>
		<nav class="side" aria-label="Views">
			<a class="brand" href=${href("live")}><${Gate} />callgate</a>
			<ul>${Object.entries(VIEWS).filter(([, each]) => each.key).map(([name, each]) => html`<li>
				<a href=${href(name)} aria-current=${name === (view.within ?? route.view) ? "page" : null}>
					${each.name}${name === "inbox" && waiting > 0 && html`<b class="count"
						aria-label=${`${waiting} waiting`}>${waiting}</b>`}</a></li>`)}</ul>
			<${Foot} link=${link} onHelp=${() => setHelp(!help)} />
		</nav>
		<main id="main" ref=${main} tabindex="-1" aria-label=${view.name}>
			<${Banner} link=${link} />
			<${SettingsBanner} />
			<${view.draw} key=${route.view + route.id} id=${route.id} query=${route.query} />
		</main>
		${help && html`<${Help} onClose=${() => setHelp(false)} />`}
	</div>`;
}

function NotFound() {
	return html`<section><header class="bar"><h1>Not found</h1></header>
	<div class="scroll"><div class="empty"><p class="empty-title">This page does not exist.</p>
		<p>The address <code>${asLine(location.hash, 80)}</code> is not a view of the dashboard.</p>
		<p><a class="button" href=${href("live")}>Go to Live</a></p></div></div></section>`;
}

const LoggedOut = () => html`<main class="empty" role="alert"><p><${Gate} /></p><h1>You are logged out.</h1>
	<p>Run this command in a terminal. It opens the dashboard, and this page continues:</p>
	<p class="command"><code>callgate dashboard</code><${Copy} text="callgate dashboard" /></p></main>`;

const Gate = () => html`<svg class="gate" viewBox="0 0 24 24" aria-hidden="true">
	<path d="M4 21V11a8 8 0 0 1 16 0v10M9.5 21v-9a2.5 2.5 0 0 1 5 0v9" /></svg>`;

const LINKS = { live: "connected", locked: "logged out" };

function Foot({ link, onHelp }) {
	const { instance } = useStore();
	const [shown, setShown] = useState(theme());
	return html`<div class="foot">
		<p class=${`link-state ${link}`} role="status"><i aria-hidden="true"></i>${LINKS[link] ?? link}</p>
		${instance && html`<p class="quiet where" title=${instance.workspaces.join("\n")}>
			mode ${instance.mode} · ${instance.version}</p>`}
		<p class="buttons"><button class="small" onClick=${() => setShown(nextTheme())}
			aria-label=${`Colours: ${shown}`}>${shown}</button>
		<button class="small" onClick=${onHelp} aria-label="Keys">?</button></p></div>`;
}

function Banner({ link }) {
	if (link === "locked") {
		return html`<div class="banner locked" role="alert"><p><b>Logged out.</b> Log in again with this
			command. This page then continues, and no event is lost.</p>
			<p class="command"><code>callgate dashboard</code><${Copy} text="callgate dashboard" /></p></div>`;
	}
	return link === "reconnecting" && html`<div class="banner" role="status">
		Reconnecting. Missed events will appear afterwards.</div>`;
}

function SettingsBanner() {
	const { instance } = useStore();
	if (instance?.settings_problem) {
		return html`<div class="banner" role="alert"><p><b>The settings are invalid.</b> Calls with
			side effects are refused until you correct them.</p><p><code>${instance.settings_problem}</code></p></div>`;
	}
	return instance?.restart_for?.length > 0 && html`<div class="banner" role="status">
		${instance.restart_for.join(", ")} changed in the settings. Restart this instance to apply it.</div>`;
}

const KEYS = [
	["1 … 8", "go to a view"], ["/", "search"], ["p", "pause the live list"],
	["↑ ↓ Enter", "move in a list"], ["j k", "select the next or previous question"], ["a", "allow once"],
	["s", "allow for this session"], ["o", "show all arguments"], ["w", "always allow, by a pattern"], ["e", "edit the arguments"],
	["d", "deny, with a reason"], ["Esc", "close"],
];

function Help({ onClose }) {
	const dialog = useRef(null);
	useEffect(() => dialog.current.showModal(), []);
	return html`<dialog ref=${dialog} class="help" aria-label="Keys" onClose=${onClose}>
		<h2>Keys</h2><dl>${KEYS.map(([key, does]) => html`<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl>
		<button onClick=${() => dialog.current.close()}>Close</button></dialog>`;
}

applyTheme();
start();
render(html`<${App} />`, document.getElementById("app"));
