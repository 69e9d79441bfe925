// The available tools, the others by reason, and a form to try one.

import { href } from "../lib/router.js";
import { useRead } from "../lib/store.js";
import { count, visible } from "../lib/text.js";
import { html } from "../lib/ui.js";
import { Block, Copy, Effect, Empty, Search, Trouble, asLine, asText } from "../parts/basics.js";
import { TryIt } from "../parts/tryit.js";

export function Tools({ id, query }) {
	const [all, problem] = useRead("/v1/tools");
	const tools = all?.tools;
	const text = (query.q ?? "").toLowerCase();
	const found = (tools ?? []).filter((each) =>
		`${each.name} ${each.description} ${each.source}`.toLowerCase().includes(text));
	const usable = found.filter((each) => !each.hidden);
	const groups = Map.groupBy(found.filter((each) => each.hidden), (each) => each.hidden);
	const chosen = tools?.find((each) => each.name === id);
	const missing = found.length - usable.length;

	return html`<section class=${`tools ${chosen ? "split" : ""}`}>
		<header class="bar"><h1>Tools</h1>
			<${Search} what="tools" query=${query} />
			<span class="quiet total">${tools ? `${count(usable.length, "tool")} available` : ""}</span></header>
		<${Trouble} problem=${problem} />
		${id && tools && !chosen && html`<${Empty} title=${`There is no tool ${visible(id)}.`}
			command="callgate tools" />`}
		<div class="catalogue">
			${tools && !found.length && html`<${Empty} title="No tool matches." command="callgate tools" />`}
			<${Names} label="Tools" tools=${usable} id=${id} query=${query} />
			${missing > 0 && html`<details class="unavailable" open=${text !== "" || Boolean(chosen?.hidden)}>
				<summary>${count(missing, "tool")} not available</summary>
				${[...groups].map(([reason, some]) => html`<section key=${reason}><${Reason} reason=${reason} />
					<${Names} label=${`Not available: ${visible(reason)}`} tools=${some} id=${id} query=${query} /></section>`)}
			</details>`}</div>
		${chosen && html`<${Detail} key=${chosen.name + (query.arguments ?? "")} tool=${chosen}
			query=${query} />`}
	</section>`;
}

/** The reason why tools are unavailable, and its final command that makes them available. */
function Reason({ reason }) {
	const [why, command] = reason.split("; run: ");
	return html`<p class="reason">${asText(`${why[0].toUpperCase()}${why.slice(1)}.`)}
		${command && html` <span class="command"><code>${asText(command)}</code><${Copy} text=${command} /></span>`}</p>`;
}

const Names = ({ label, tools, id, query }) => html`<ul aria-label=${label}>${tools.map((each) => html`<li key=${each.name}>
	<a href=${href("tools", each.name, { q: query.q })} aria-current=${each.name === id ? "true" : null}>
		<span class="tool">${asLine(each.name)}</span><${Effect} effect=${each.side_effects} />
		<span class="source">${asLine(each.source)}</span>
		<span class="summary">${asLine(each.description)}</span></a></li>`)}</ul>`;

const CAN = {
	"read-only": "only read", "writes-files": "change files", "controls-browser": "control a browser",
	"starts-process": "start programs", "accesses-network": "reach other machines", destructive: "destroy data",
};
const inWords = (capability) => CAN[capability] ?? capability;

function Detail({ tool, query }) {
	return html`<aside class="panel" aria-label=${`Tool ${visible(tool.name)}`}>
		<header><h2>${asLine(tool.name)}</h2><${Effect} effect=${tool.side_effects} />
			${tool.destructive && html`<span class="effect destructive">destructive</span>`}
			<a class="button small close" href=${href("tools", "", { q: query.q })} aria-label="Close">✕</a>
				</header>
		<p>${asText(tool.description)}</p>
		${tool.hidden && html`<p class="warn">Not available</p><${Reason} reason=${tool.hidden} />`}
		<dl class="facts"><dt>Source</dt><dd>${asLine(tool.source)} (${tool.kind})</dd>
			<dt>Can</dt><dd>${tool.capabilities.map(inWords).join(", ") || "change nothing outside itself"}</dd></dl>
		<${TryIt} tool=${tool} given=${query.arguments} />
		<details><summary>Schema</summary><${Block} label="Schema"
			value=${JSON.stringify(tool.input_schema, null, 2)} /></details>
	</aside>`;
}
