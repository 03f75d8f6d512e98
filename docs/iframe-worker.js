// Search when a page is opened from disk: browsers refuse workers there, so a hidden iframe runs the script instead.
// Material's offline plugin would load such a script from the network; its name tells the plugin that one is here.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.onload = () => {
        this.ready = true
        this.waiting.splice(0).forEach((data) => this.postMessage(data))
      }
      script.src = url
      inside.document.body.append(script)
    }

    postMessage(data) {
      if (this.ready) this.inside.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }
  }
}
