// Browsers start no worker for a page that was opened from the disk. There, the site's search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #pending = [];

    constructor(url) {
      super();
      this.#frame.hidden = true;
      this.#frame.onload = () => this.#start(url);
      document.documentElement.append(this.#frame);
    }

    postMessage(data) {
      this.#pending.push(data);
      if (this.#frame.dataset.ready) this.#flush();
    }

    #start(url) {
      const { contentWindow: inner, contentDocument: page } = this.#frame;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = page.createElement("script");
      script.src = url;
      script.onload = () => {
        this.#frame.dataset.ready = "yes";
        this.#flush();
      };
      page.head.append(script);
    }

    #flush() {
      const inner = this.#frame.contentWindow;
      for (const data of this.#pending.splice(0)) inner.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
