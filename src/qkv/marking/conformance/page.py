"""The report card as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --soft: #5c5c66; --ground: #fff; --line: #dcdce2;
  --right: #17692f; --wrong: #a8201a; --refused: #7a5200; --absent: #5c5c66; --code: #f4f4f6; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf0; --soft: #a6a6b0; --ground: #17171a;
  --line: #3a3a42; --right: #6fd08c; --wrong: #ff8a80; --refused: #e8bd6a; --absent: #a6a6b0;
  --code: #222227; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } p { color: var(--soft); }
section { border-top: 1px solid var(--line); padding: .6rem 0; display: grid;
  grid-template-columns: 13rem 5.5rem 1fr; gap: .2rem 1rem; align-items: baseline; }
h2 { font-size: 1rem; margin: 0; } .says { overflow-wrap: anywhere; min-width: 0; }
.status { font-weight: 600; } .right { color: var(--right); } .wrong { color: var(--wrong); }
.refused { color: var(--refused); } .absent { color: var(--absent); }
pre { background: var(--code); padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: .85rem; margin: .4rem 0; } del, ins { text-decoration: none; }
del { color: var(--wrong); } ins { color: var(--right); }
@media (max-width: 40rem) { section { grid-template-columns: 1fr auto; }
  .says { grid-column: 1 / -1; } }
"""


def page(name: str, summary: str, rows: Iterable[tuple[str, str, str, list[str]]]) -> str:
    """The card, for light and dark screens and for phones.

    Args:
        name: what was judged.
        summary: a line on the whole.
        rows: of each feature its name, its status, a remark and lines on what went wrong.
    """
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}: conformance</title>
<style>{_STYLE}</style>
<main>
<h1>{escape(name)}</h1>
<p>{escape(summary)}, judged by the formula of attention in float64. <em>Refused</em>: it raises an
error. <em>Absent</em>: it has no argument for it.</p>
{"".join(_row(*row) for row in rows)}
</main>
</html>
"""


def _row(name: str, status: str, remark: str, lines: list[str]) -> str:
    more = "\n".join(map(_line, lines))
    says = escape(remark) + (f"<pre>{more}</pre>" if more else "")
    return (
        f'<section><h2>{escape(name)}</h2><span class="status {status}">{status}</span>'
        f'<div class="says">{says}</div></section>\n'
    )


def _line(line: str) -> str:
    kind = {"- ": "del", "+ ": "ins"}.get(line[:2])
    return f"<{kind}>{escape(line)}</{kind}>" if kind else escape(line)
