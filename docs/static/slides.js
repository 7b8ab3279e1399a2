// Go to the next or the previous slide of a lesson by keys, and write the current slide into the page's address.
const slides = [...document.querySelectorAll("main > section")];
const shown = () => slides.reduce((best, slide, at) => (slide.getBoundingClientRect().top < innerHeight / 2 ? at : best), 0);
const STEPS = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 };

addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  const isControl = event.target.closest("summary, a, button, input, textarea, iframe");
  if (!step || event.altKey || event.ctrlKey || event.metaKey || (isControl && event.key === " ")) return;
  event.preventDefault();
  slides[Math.min(Math.max(shown() + (event.shiftKey ? -step : step), 0), slides.length - 1)].scrollIntoView();
});
addEventListener("scrollend", () => history.replaceState(null, "", `#${slides[shown()].id}`));
