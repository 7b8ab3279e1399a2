"""One model behind many live pages: it is read once, and each page has its own view.

A live page carries its model: 14 MB, which are read whenever the page opens. Here, api.js starts a
stand-in instead of the page's own worker. The stand-in forwards all messages to one worker. All
pages that have the same model share this worker within a process. The pages share nothing else:
each page has its own state, undo history, scripts and view.
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

from playwright.sync_api import BrowserContext, Page

from qkv.see.page.html import bundle

from .support import HEAD

BEGIN, END = '<script type="application/json" data-side="encoder">', "</script>"
# The shared worker's script: it renumbers the messages of many pages as those of one page.
SHARED = """
globalThis.onmessage = null;
const asked = new Map(); // {port, id} of a page, by the number here
let [ready, count] = [null, 0];
globalThis.postMessage = (said) => {
  if (said.ready) return void (ready = said);
  const { port, id } = asked.get(said.id) ?? {};
  port?.postMessage({ ...said, id });
  if (said.done || said.error) asked.delete(said.id);
};
globalThis.onconnect = ({ ports: [port] }) => {
  const own = new Map(); // the numbers here, by those of the page
  const drop = (id) => onmessage({ data: { drop: id } });
  port.onmessage = ({ data: { read, gone, ...question } }) => {
    if (read && !ready) onmessage({ data: { read } });
    if (read) port.postMessage(ready);
    else if (gone) own.forEach(drop);
    else if (question.drop) drop(own.get(question.drop));
    else {
      own.set(question.id, (count += 1));
      asked.set(count, { port, id: question.id });
      onmessage({ data: { ...question, id: count } });
    }
  };
};
"""
# The page that starts the shared worker. `running` is a promise. When the worker has read the
# model, the promise resolves to the worker's URL.
HOST = """<!doctype html><title>a model</title><link rel="icon" href="data:,">
<script type="text/plain">{code}</script><script type="text/plain">{data}</script>
<script>
  const [code, data] = [...document.scripts].map(({{ text }}) => text);
  const url = URL.createObjectURL(new Blob([code], {{ type: "text/javascript" }}));
  globalThis.running = new Promise((found) => {{
    globalThis.worker = new SharedWorker(url);
    worker.port.onmessage = () => found(url);
    worker.port.postMessage({{ read: data }});
  }});
</script>"""
# Replaces the page's Worker. The page holds the shared worker's URL where it would hold the model.
STAND_IN = """
globalThis.Worker = class {
  postMessage({ read, ...question }) {
    if (read) {
      this.port = new SharedWorker(read).port;
      this.port.onmessage = (event) => this.onmessage(event);
      addEventListener("pagehide", () => this.port.postMessage({ gone: true }));
    }
    this.port.postMessage({ read, ...question });
  }
};
"""


class Site(BaseHTTPRequestHandler):
    """Serves the open pages at their addresses."""

    given: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        body = self.given[self.path]
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class OneModel:
    """Opens live pages; pages with the same model share one running copy of it.

    The browser context must run STAND_IN in each page.
    """

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self._running: list[tuple[str, str]] = []  # (a model as pages carry it, its worker's URL)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
        Thread(target=self._server.serve_forever, daemon=True).start()
        Site.given["/empty.html"] = HEAD.encode()
        self.empty = f"http://localhost:{self._server.server_port}/empty.html"

    def open(self, page: Page, html: str) -> str:
        """Show a live page, and return its address."""
        start = html.index(BEGIN) + len(BEGIN)
        end = html.index(END, start)
        return self._show(page, html[:start] + self._address_of(html[start:end]) + html[end:])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _address_of(self, data: str) -> str:
        for known, address in self._running:
            if known == data:
                return address
        host = self._context.new_page()  # stays open, which keeps the worker running
        code = f'"use strict";\n{SHARED}\n{bundle("worker.js")}'
        self._show(host, HOST.format(code=code, data=data))
        address = str(host.evaluate("running"))
        self._running.append((data, address))
        return address

    def _show(self, page: Page, html: str) -> str:
        path = f"/{len(Site.given)}.html"
        Site.given[path] = html.encode()
        page.goto(f"http://localhost:{self._server.server_port}{path}")
        Site.given[path] = b""
        return page.url.partition("#")[0]
