// Light, dark or the system's theme, stored in this browser.

const NAME = "callgate.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

export function theme() {
	return NEXT[localStorage.getItem(NAME)] ? localStorage.getItem(NAME) : "auto";
}

export function applyTheme() {
	document.documentElement.dataset.theme = theme();
}

export function nextTheme() {
	localStorage.setItem(NAME, NEXT[theme()]);
	applyTheme();
	return theme();
}
