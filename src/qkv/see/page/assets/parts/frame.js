// A page in a frame of another page. The outer page sends its theme, light or dark, and this page sends its height
// when all is drawn. They exchange messages, since pages that are opened as files may not access each other.

import { ONE_OF } from "../store/state.js";

/** @typedef {import("../store/store.js").Store} Store */

/** @param {Store} store */
export function inFrame(store) {
  if (window.parent === window) return;
  window.addEventListener("message", ({ source, data }) => {
    const theme = data?.theme;
    if (source === window.parent && ONE_OF.theme.includes(theme)) store.set({ theme });
  });
  const high = () => Math.ceil(document.body.getBoundingClientRect().height);
  const tell = () => store.state.only && store.painted && window.parent.postMessage({ height: high() }, "*");
  new ResizeObserver(tell).observe(document.body);
  new MutationObserver(tell).observe(document.documentElement, { attributeFilter: ["data-painted"] });
}
