// The weights of a head as lines from tokens to tokens.

import { LINES } from "../base/colours.js";
import { roving } from "../base/controls.js";
import { drawn, el, fill, svg } from "../base/elements.js";
import { count, visible } from "../base/format.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {import("./sight.js").Head} Head */

/**
 * @typedef {{head: Head, active: number[], held: boolean, high: number}} Shown  `active`: the rows in view; `held`: whether
 *     the reader keeps these rows in view; `high`: the end of the scale
 * @typedef {{c?: number, name: string, kind: string, values: number[], hidden?: boolean, mine?: boolean}} Key  one
 *     key of the list, or an entry for several keys together; `c`: the column of a single key; `values`: the weights
 *     from the rows in view
 */

export const ROW = 26; // the height of one token, in CSS pixels
export const LISTED = 40; // up to this number of keys, all keys are listed

/**
 * The rows of a head in view: the rows that the reader keeps; otherwise the row under the pointer or the focus;
 * otherwise the row of `token`.
 * @param {Head} head
 * @param {number[]} held
 * @param {number | null} hover
 * @param {number} token
 */
export function rowsInView(head, held, hover, token) {
  const rows = held.map(head.rowAt).filter((r) => r >= 0);
  if (rows.length) return [...new Set(rows)];
  if (hover !== null) return [hover];
  return head.rows.length ? [Math.max(0, head.rowAt(token))] : [];
}

/**
 * Returns the tokens of the rows that stay in view after the reader picks row r. If `add` is true, r is toggled: it is
 * added to the kept rows, or removed if it was already kept. Otherwise r becomes the only kept row; but if r was
 * already the only kept row, no row is kept.
 * @param {Head} head
 * @param {number[]} held
 * @param {number} r
 * @param {boolean} add
 */
export function heldWith(head, held, r, add) {
  const others = held.filter((token) => head.rowAt(token) !== r);
  const on = others.length < held.length;
  return [...(add ? others : []), ...(on && (add || !others.length) ? [] : [head.rows[r].first])];
}

/**
 * Queries on the left, keys on the right, and lines between them. If there are many keys, only the keys with the
 * largest weights from the queries in view are listed, with their positions. If there are many queries, only the
 * visible queries are in the page.
 * @param {Ui} ui
 * @param {{onhover: (r: number | null, aloud: boolean) => void, onpick: (r: number, add: boolean) => void, onfree: () => void}} heard
 */
export function lines(ui, { onhover, onpick, onfree }) {
  const tokens = el("div", { class: "tokens" });
  const list = el("div", { class: "queries scroll", role: "listbox", "aria-label": "queries", "aria-multiselectable": "true" }, tokens);
  const art = svg("svg", { class: "links", "aria-hidden": "true" });
  const keys = el("ul", { class: "keys", role: "list", "aria-label": "keys" });
  const node = el("div", { class: "lines" }, el("span", { class: "from" }, "from (query)"), el("span", { class: "to" }, "to (key)"), list, art, keys);
  /** @type {Shown} */
  let now; // undefined before the first update
  /** @type {Key[]} */
  let listed = [];
  /** @param {number} k */
  const colour = (k) => `var(--line-${k % LINES})`;
  /** @param {any} event */
  const item = (event) => event.target.closest("[data-i]");
  const move = roving(list, {
    count: () => now.head.rows.length,
    onmove(i) {
      reveal(i);
      onhover(i, true);
    },
    onpick: (i, event) => onpick(i, event.shiftKey),
    onfree,
  });
  const again = () => {
    if (!now) return;
    drawTokens();
    drawLinks();
  };
  list.addEventListener("pointerover", (/** @type {PointerEvent} */ event) => {
    if (item(event) && event.pointerType !== "touch") onhover(Number(item(event).dataset.i), false);
  });
  list.addEventListener(
    "focusin",
    (/** @type {FocusEvent} */ event) => item(event).matches(":focus-visible") && onhover(Number(item(event).dataset.i), true),
  );
  for (const left of ["pointerleave", "focusout"]) list.addEventListener(left, () => onhover(null, false));
  list.addEventListener("scroll", () => requestAnimationFrame(again), { passive: true });
  ui.redraw(() => again());

  /**
   * Scrolls to a row; a row that is far away moves to the middle.
   * @param {number} i
   */
  function reveal(i) {
    const height = list.clientHeight;
    const middle = (i + 0.5) * ROW - height / 2;
    if (Math.abs(middle - list.scrollTop) > height) list.scrollTop = middle;
    list.scrollTop = Math.max((i + 1) * ROW - height, Math.min(i * ROW, list.scrollTop));
    drawTokens();
  }

  function drawTokens() {
    const { head, active, held } = now;
    const all = head.rows.length;
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
    const last = Math.min(all, first + Math.ceil((list.clientHeight || 400) / ROW) + 12);
    const old = new Map([...tokens.children].map(/** @returns {[number, HTMLElement]} */ (node_) => [Number(node_.dataset.i), node_]));
    for (const [i, node_] of old) {
      if ((i < first || i >= last) && i !== move.at && node_ !== ui.focused()) node_.remove();
    }
    for (let i = first; i < last; i++) draw(i);
    if (all && (move.at < first || move.at >= last)) draw(move.at); // the Tab key reaches only this row
    move.refresh();

    /** @param {number} i */
    function draw(i) {
      let token = /** @type {HTMLElement} */ (old.get(i));
      if (!token) {
        const { name, first: position } = head.rows[i];
        token = el("div", { class: "token", role: "option", "data-i": i, "aria-setsize": all, "aria-posinset": i + 1, style: { top: `${i * ROW}px` } },
          all > LISTED ? el("span", { class: "position" }, count(position)) : null, drawn(name));
        tokens.insertBefore(token, [...tokens.children].find((/** @type {any} */ other) => other.dataset.i > i) || null);
      }
      const k = active.indexOf(i);
      token.setAttribute("aria-selected", String(held && k >= 0));
      token.classList.toggle("on", k >= 0);
      token.style.setProperty("--its", k >= 0 ? colour(k) : "transparent");
    }
  }

  function drawKeys() {
    const { head, active, high } = now;
    const many = head.columns.length > LISTED;
    let shown = head.columns.map((_, c) => c);
    if (many) {
      const best = active.flatMap((r) => head.known(r).slice(0, 14)).sort((a, b) => b[1] - a[1]);
      shown = [...new Set(best.map(([c]) => c))].slice(0, 16).sort((a, b) => a - b);
    }
    listed = shown.map((c) => ({
      c,
      name: visible(head.columns[c].name),
      kind: "",
      values: active.map((r) => head.values(r).get(c) || 0),
      hidden: active.length > 0 && active.every((r) => head.hidden(r, c)),
      mine: active.every((r) => head.changed(r, c)),
    }));
    if (many) {
      /** @param {number} r */
      const sum = (r) =>
        head.known(r).reduce((total, [c, value]) => total + (shown.includes(c) ? 0 : value), head.rest(r));
      listed.push({
        name: `${count(head.columns.length - shown.length)} other keys`,
        kind: "others",
        values: active.map(sum),
      });
    }
    if (head.away) listed.push({ name: "not shown", kind: "away", values: active.map(head.gone) });
    /** @param {number} value */
    const said = (value) => (value >= 0.005 * high ? head.say(value) : value > 0 ? "·" : "");
    fill(keys, listed.map(({ c, name, kind, values, hidden, mine }) => el("li", { class: `key ${kind}` },
      el("span", { class: "bars" }, values.map((value, k) => el("span", { style: { width: `${Math.min(100, (100 * value) / high)}%`, background: colour(k) } }))),
      many && c !== undefined ? el("span", { class: "position" }, count(head.columns[c].first)) : null,
      el("bdi", { class: "name" }, name),
      el("span", { class: "value" }, values.length > 2 ? "" : values.map(said).join("  ")),
      hidden ? el("span", { class: mine ? "unseen changed" : "unseen" }, el("span", { class: "sr" }, "hidden")) : null)));
  }

  function drawLinks() {
    const { active, high } = now;
    const [width, height] = [art.clientWidth || 100, list.clientHeight];
    const paths = active.flatMap((r, k) =>
      listed.map(({ kind, values }, position) => {
        const share = kind === "others" ? 0 : Math.min(1, values[k] / high);
        const from = Math.max(2, Math.min(height - 2, (r + 0.5) * ROW - list.scrollTop));
        const to = (position + 0.5) * ROW;
        return { share, k, kind, d: `M0 ${from}C${width / 2} ${from} ${width / 2} ${to} ${width} ${to}` };
      }),
    );
    const drawn = paths.filter(({ share }) => share > 0.004).sort((a, b) => a.share - b.share);
    fill(art, drawn.map(({ share, k, kind, d }) => svg("path", {
      d, class: `link ${kind}`, style: { stroke: colour(k) },
      "stroke-width": (0.8 + 7 * share).toFixed(2), "stroke-opacity": (0.12 + 0.83 * Math.sqrt(share)).toFixed(3),
    })));
  }

  /**
   * Shows `next`. `fresh`: the tokens differ from the previous tokens, so the part scrolls to the first row in view.
   * @param {Shown} next
   * @param {boolean} fresh
   */
  function set(next, fresh) {
    now = next;
    const all = now.head.rows.length;
    tokens.style.height = `${all * ROW}px`;
    drawKeys();
    const rows = all > LISTED ? Math.max(16, listed.length) : Math.max(all, listed.length);
    node.style.setProperty("--tall", `${rows * ROW}px`);
    if (fresh) {
      tokens.replaceChildren();
      move.at = now.active[0] || 0;
      reveal(move.at);
    }
    again();
  }
  return { node, set, reveal, listed: () => listed };
}
