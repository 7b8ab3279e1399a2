"""One model behind many pages: it is read once, and each page has a view and a door of its own.

A live page carries its model, 14 MB that are read anew whenever it opens. Here the worker that the
door (door.js) would start is a stand-in, which asks a worker that all pages of a process share.
Nothing else is shared: the page's state, its undo, its scripts and what it shows begin with it.
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

from playwright.sync_api import BrowserContext, Page

from qkv.see.page.html import bundle

BEGIN, END = '<script type="application/json" data-side="encoder">', "</script>"
# The shared worker's side: the messages of many pages are one's, with numbers of their own.
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
# Of a page that starts it, once: its address, when it has read the model.
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
# In place of the page's Worker; where the model would stand, the address of the shared one stands.
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
    """Gives the pages that are open, by their addresses."""

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
    """Opens live pages of a context, whose script is STAND_IN, each on the model it would carry."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self._running: list[tuple[str, str]] = []  # a model as a page carries it, its address
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
        Thread(target=self._server.serve_forever, daemon=True).start()

    def open(self, page: Page, html: str) -> str:
        """Shows a live page, and gives its address."""
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
        host = self._context.new_page()  # it stays, and the worker with it
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
