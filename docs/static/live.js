// Frames the live views of a page, whose links stay where a reader saves data. A frame is as light or dark as the page,
// which it is told at once in its address and later by messages; and it tells how high it is, also from files.
addEventListener("DOMContentLoaded", () => {
  if (navigator.connection?.saveData) return;
  const theme = () => ({ light: "light", dark: "dark" })[document.body.dataset.theme] ?? null; // null: the system's
  const tell = (frame) => frame.contentWindow.postMessage({ theme: theme() }, "*");
  const frames = [...document.querySelectorAll(".live-view")].map((place) => {
    const link = place.querySelector("a");
    const frame = document.createElement("iframe");
    const src = theme() ? `${link.href}&theme=${encodeURIComponent(JSON.stringify(theme()))}` : link.href;
    Object.assign(frame, { title: link.textContent.replace(/^Open a/, "A"), loading: "lazy", src });
    frame.style.height = `${place.dataset.height}px`;
    frame.addEventListener("load", () => tell(frame)); // the reader may have switched while it was loading
    link.replaceWith(frame);
    return frame;
  });
  new MutationObserver(() => frames.forEach(tell)).observe(document.body, { attributeFilter: ["data-theme"] });
  addEventListener("message", ({ source, data }) => {
    const frame = frames.find(({ contentWindow }) => contentWindow === source);
    if (frame && data?.height > 0) frame.style.height = `${data.height}px`;
  });
});
