#!/usr/bin/env node
// Runs the tools of one plugin for callgate: `node host.mjs PLUGIN`, a file, directory or package.
//
//     stdin -> lib/wire -> lib/host -> the plugin's methods -> lib/wire -> stdout
//
// It exits with 0 when stdin ends, with 1 when the plugin cannot be used, with 2 when it is
// called wrongly. Nothing that the plugin or its children print comes near the protocol.

import { Host } from "./lib/host.mjs";
import { load } from "./lib/modules.mjs";
import { methodsOf } from "./lib/plugins.mjs";
import { claim, note } from "./lib/stdio.mjs";

const GRACE_MS = 1_000; // for calls to end after stdin did: the runtime terminates us after 2 s

const [plugin, ...more] = process.argv.slice(2);
if (plugin === undefined || more.length) leave(2, "usage: callgate-tool-host PLUGIN");

const { input, write } = claim();
const loading = load(plugin).then(methodsOf);
const host = new Host(loading, write);
loading.catch((error) => leave(1, `cannot use ${plugin}: ${error?.stack ?? error}`));

input.on("data", (bytes) => host.receive(bytes)).on("error", () => {}).on("close", async () => {
  setTimeout(leave, GRACE_MS, 0);
  await host.end();
  leave(0);
});
process.on("uncaughtException", (error) => host.struck(error));
process.on("unhandledRejection", (error) => host.struck(error));

function leave(code, why) {
  if (why) note(why);
  process.exit(code);
}
