// Frames the live views of a page, whose links stay where a reader saves data. A frame is as high as what is in it,
// where the browser lets that be known: of pages that are opened as files it does not.
addEventListener("DOMContentLoaded", () => {
  if (navigator.connection?.saveData) return;
  for (const place of document.querySelectorAll(".live-view")) {
    const link = place.querySelector("a");
    const frame = document.createElement("iframe");
    Object.assign(frame, { title: link.textContent.replace(/^Open a/, "A"), loading: "lazy", src: link.href });
    frame.style.height = `${place.dataset.height}px`;
    frame.addEventListener("load", () => {
      const page = frame.contentDocument?.body;
      if (page) new ResizeObserver(() => (frame.style.height = `${page.offsetHeight + 2}px`)).observe(page);
    });
    link.replaceWith(frame);
  }
});
