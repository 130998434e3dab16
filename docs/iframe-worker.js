// Search in pages that are opened from a folder. Browsers start no worker for them, so its script
// runs in a hidden frame. The name tells mkdocs-material that it need not load its own such file.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.inner = frame.contentWindow;
      this.inner.document.open();
      this.inner.document.write("<!doctype html><body></body>");
      this.inner.document.close();
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inner.document.createElement("script");
      this.started = new Promise((done) => script.addEventListener("load", done));
      script.src = url;
      this.inner.document.body.append(script);
    }

    postMessage(data) {
      this.started.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
