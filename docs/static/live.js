// Replace each link to a live view by a frame, unless the reader's browser is set to save data. The frame has the light
// or dark theme of the page: the frame's address gives the first theme, and messages report later changes. The frame
// sends its height as a message, which also works if the page was opened from a disk.
addEventListener("DOMContentLoaded", () => {
  if (navigator.connection?.saveData) return;
  const theme = () => ({ light: "light", dark: "dark" })[document.body.dataset.theme] ?? null; // null: the system's theme
  const tell = (frame) => frame.contentWindow.postMessage({ theme: theme() }, "*");
  const frames = [...document.querySelectorAll(".live-view")].map((place) => {
    const link = place.querySelector("a");
    const frame = document.createElement("iframe");
    const src = theme() ? `${link.href}&theme=${encodeURIComponent(JSON.stringify(theme()))}` : link.href;
    Object.assign(frame, { title: link.textContent.replace(/^Open a/, "A"), loading: "lazy", src });
    frame.style.height = `${place.dataset.height}px`;
    frame.addEventListener("load", () => tell(frame)); // the reader may have changed the theme during loading
    link.replaceWith(frame);
    return frame;
  });
  new MutationObserver(() => frames.forEach(tell)).observe(document.body, { attributeFilter: ["data-theme"] });
  addEventListener("message", ({ source, data }) => {
    const frame = frames.find(({ contentWindow }) => contentWindow === source);
    if (frame && data?.height > 0) frame.style.height = `${data.height}px`;
  });
});
