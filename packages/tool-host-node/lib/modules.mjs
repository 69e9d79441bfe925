// Finds and imports a plugin: a file, the directory of a package, or a package's name.
//
// Names are looked up from the working directory, as `import` would from a file in it.

import { readFileSync, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const USUAL = ["dist/index.js", "dist/index.mjs", "index.mjs", "index.js", "index.cjs"];
const CONDITIONS = ["node", "import", "module-sync", "default", "require"];

/** What a plugin's module exports. */
export async function load(plugin) {
  const file = find(plugin);
  try {
    return await import(pathToFileURL(file).href);
  } catch (error) {
    if (error?.code !== "ERR_UNKNOWN_FILE_EXTENSION") throw error;
    throw new Error(`Node ${process.version} cannot run ${file}; compile it to JavaScript first`);
  }
}

function find(plugin) {
  const path = resolve(plugin);
  const kind = kindOf(path);
  if (kind === "file") return path;
  if (kind === "directory") return entryOf(path);
  const [, name, inside] = /^((?:@[^/]+\/)?[^./@][^/]*)(?:\/(.+))?$/.exec(plugin) ?? [];
  const home = name && installed(name, process.cwd());
  if (!home) throw new Error("there is no such file, directory or installed package");
  if (!inside) return entryOf(home);
  return within(home, inside);
}

function installed(name, from) {
  const home = join(from, "node_modules", name);
  if (kindOf(home) === "directory") return home;
  return dirname(from) === from ? undefined : installed(name, dirname(from));
}

// Where a package begins: what it exports, else its main file, else where it usually is.
function entryOf(home) {
  const about = kindOf(join(home, "package.json")) ? aboutOf(home) : {};
  const exported = targetOf(about.exports?.["."] ?? about.exports);
  if (exported) return within(home, exported);
  const main = typeof about.main === "string" ? [about.main, `${about.main}.js`] : [];
  const found = [...main, ...USUAL].map((each) => join(home, each));
  const file = found.find((each) => kindOf(each) === "file");
  if (!file) throw new Error(`${home} has no exports, no main and none of ${USUAL.join(", ")}`);
  return file;
}

function aboutOf(home) {
  try {
    return JSON.parse(readFileSync(join(home, "package.json"), "utf8")) ?? {};
  } catch (error) {
    throw new Error(`the package.json of ${home} cannot be read: ${error.message}`);
  }
}

function targetOf(exported) {
  if (typeof exported === "string") return exported;
  if (Array.isArray(exported)) return exported.map(targetOf).find(Boolean);
  if (typeof exported !== "object" || exported === null) return undefined;
  const conditions = Object.keys(exported).filter((each) => CONDITIONS.includes(each));
  return conditions.map((each) => targetOf(exported[each])).find(Boolean);
}

function within(home, path) {
  const file = join(home, path);
  if (kindOf(file) !== "file") throw new Error(`there is no file ${file}`);
  return file;
}

function kindOf(path) {
  const found = statSync(path, { throwIfNoEntry: false });
  return found && (found.isDirectory() ? "directory" : "file");
}
