// The page in a frame of another: it is told whether that is light or dark, and tells how high it is itself. Both by
// messages, since pages that are opened as files may not look into each other.

/**
 * @param {any} store
 */
function inFrame(store) {
  if (window.parent === window) return;
  window.addEventListener("message", ({ source, data }) => {
    const theme = data?.theme;
    if (source === window.parent && ONE_OF.theme.includes(theme)) store.set({ theme });
  });
  const tell = () => store.state.only && window.parent.postMessage({ height: Math.ceil(document.body.getBoundingClientRect().height) }, "*");
  new ResizeObserver(tell).observe(document.body);
}
