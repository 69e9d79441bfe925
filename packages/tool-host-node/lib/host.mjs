// Requests to a plugin's methods, and their answers back.
//
// Whatever a method does, its own request fails and no other. What is thrown where nobody
// catches it (in a timer, in a promise that nobody awaits) fails the request that it belongs to;
// if it belongs to none, all those under way, because what they wait for may never come.

import { AsyncLocalStorage } from "node:async_hooks";
import { Asks } from "./asks.mjs";
import { Call } from "./calls.mjs";
import { contextOf } from "./contexts.mjs";
import { isObject, OF_RUNTIME } from "./frames.mjs";
import { Refusal } from "./refusals.mjs";
import { note } from "./stdio.mjs";
import { noMethod, Wire } from "./wire.mjs";

export class Host {
  #loading; // the plugin's methods, sooner or later
  #methods;
  #write;
  #calls = new Map();
  #running = new AsyncLocalStorage(); // the call to which whatever happens belongs
  wire = new Wire();

  constructor(loading, write) {
    this.#loading = loading;
    this.#write = write;
    this.asks = new Asks(this.wire, write);
  }

  receive(bytes) {
    for (const { frame, fault, line, passed } of this.wire.receive(bytes)) {
      if (fault) this.#write(line);
      else if (passed) note(`an answer that nobody waits for was passed over (${passed})`);
      else if (frame.method) this.#run(frame);
      else this.asks.answered(frame);
    }
  }

  send(frame) {
    this.#write(this.wire.encode(frame));
  }

  answer(call, frame) {
    this.#calls.delete(call.id); // before the runtime may use the id again
    this.send(frame);
  }

  async #run(request) {
    const call = new Call(this, request);
    this.#calls.set(call.id, call);
    try {
      this.#methods ??= await this.#loading;
      const result = await this.#running.run(call, () => this.#result(call, request));
      call.succeed(result);
    } catch (error) {
      call.fail(error);
    }
  }

  async #result(call, { method, params }) {
    if (method === "cancel") return { value: await this.#cancel(call, params) };
    const run = this.#methods.get(method);
    if (!run) throw new Refusal("MethodNotFound", noMethod(method));
    const value = (await run(params, contextOf(call))) ?? null;
    if (method === "init") return this.#begun(value);
    return call.state ? { value, state: call.state } : { value };
  }

  #begun(value) {
    const state = isObject(value) ? value : {};
    const methods = [...new Set([...this.#methods.keys(), "cancel"])];
    const asks = [...OF_RUNTIME.keys()].filter((each) => this.wire.offered.includes(each));
    return { value: value ?? state, state, host: { methods, asks } };
  }

  // True once the call has ended. A tool that does not heed its signal leaves this unanswered,
  // and the runtime ends the process.
  async #cancel(call, params) {
    const cancelled = this.#calls.get(params.id);
    if (cancelled?.method !== "execute_tool") return false;
    cancelled.abort("The call was cancelled.");
    await this.#methods.get("cancel")?.(params, contextOf(call));
    await cancelled.ended;
    return true;
  }

  /** Something was thrown that nobody caught. */
  struck(error) {
    note(error);
    const call = this.#running.getStore();
    for (const each of call ? [call] : [...this.#calls.values()]) {
      if (each.answered) continue;
      each.fail(error);
      each.abort("The call failed.");
    }
  }

  /** The runtime is gone: calls are told, and waited for. */
  async end() {
    this.asks.end();
    const calls = [...this.#calls.values()];
    for (const call of calls) call.abort("The runtime is gone.");
    await Promise.all(calls.map((call) => call.ended));
  }
}
