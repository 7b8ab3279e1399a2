// Elements of a page. Text from users and files is inserted as text nodes, never as HTML.

import { MASKS, named, visible } from "./format.js";

/** @param {any} node @param {any} attributes @param {any[]} children */
function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style")
      for (const [key, part] of Object.entries(value)) node.style.setProperty(key, part);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/**
 * An HTML element; children are nodes or strings, which become text.
 * @param {string} tag
 * @param {any} [attributes]
 * @param {...any} children
 */
export function el(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/**
 * An SVG element.
 * @param {string} tag
 * @param {any} [attributes]
 * @param {...any} children
 */
export function svg(tag, attributes, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/**
 * Replaces the contents of a node.
 * @param {any} node
 * @param {...any} children
 */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// A token in a sentence, marked so that it differs visibly from the words around it.
/** @param {string} token @param {string} [article] */
export function word(token, article) {
  return el("em", { class: "tok" }, el("bdi", {}, named(token, article)));
}

// A token in a picture or a list. Screen readers say "gap" for the sign of a gap.
/** @param {string} token */
export function drawn(token) {
  return el("bdi", MASKS.includes(token) ? { role: "img", "aria-label": "gap" } : {}, visible(token));
}
