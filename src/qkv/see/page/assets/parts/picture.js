// Exports a part of a page as a vector picture: every box, text and line is read from the page and written as SVG;
// canvases are drawn again with a pen that writes SVG.

import { pens } from "../base/colours.js";
import { el, svg } from "../base/elements.js";

/** @typedef {import("../base/mount.js").Ui} Ui */
/** @typedef {Pick<DOMRect, "left" | "top" | "width" | "height">} Box */
/** @typedef {Map<HTMLCanvasElement, SVGElement>} Canvases  the contents of each canvas as SVG */

// MARGIN: the margin of a picture. PIXELS: the largest width and height of a canvas whose pixels are exported as
// rectangles; a larger canvas is exported as an image.
const [MARGIN, PIXELS] = [16, 128];
// UNFOLDED: the largest number of pixels of a heat map that is exported whole; of a larger heat map, only the visible
// section is exported. SHARP: the number of PNG pixels for each CSS pixel.
const [UNFOLDED, SHARP] = [4e6, 2];
const SVG_STYLE = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap",
  "opacity", "font-family", "font-size", "font-weight", "font-style", "text-anchor", "dominant-baseline", "paint-order"];
let ids = 0; // the number of ids in use

/**
 * A picture of a part of the page without its controls, on the background of the page.
 * @param {Ui} ui
 * @param {HTMLElement} node
 * @param {string} caption  the text below the picture
 * @returns {SVGElement}
 */
export function pictureOf(ui, node, caption) {
  const below = el("p", { class: "note export-caption" }, caption);
  for (const map of node.querySelectorAll(".map"))
    if (map.scrollWidth * map.scrollHeight > UNFOLDED) map.classList.add("in-window");
  node.append(below);
  node.classList.add("exporting");
  try {
    return drawnOf(ui, node, canvasesOf(ui), caption);
  } finally {
    node.classList.remove("exporting");
    below.remove();
    for (const map of node.querySelectorAll(".in-window")) map.classList.remove("in-window");
    ui.repaint();
  }
}

/**
 * The contents of each canvas as SVG. To get them, the page is drawn once more, into SVG instead of the canvases.
 * @param {Ui} ui
 * @returns {Canvases}
 */
function canvasesOf(ui) {
  /** @type {Canvases} */
  const drawings = new Map();
  pens.other = (canvas, width, height) => {
    const pen = vectorPen(width, height);
    drawings.set(canvas, pen.node);
    return pen;
  };
  try {
    ui.repaint();
  } catch (reason) {
    reportError(reason); // the SVG pen failed, so the pixels of all canvases are exported instead
    drawings.clear();
  } finally {
    pens.other = null;
  }
  return drawings;
}

// ---- from the page to SVG

/** @param {Ui} ui @param {HTMLElement} node @param {Canvases} canvases @param {string} caption @returns {SVGElement} */
function drawnOf(ui, node, canvases, caption) {
  const out = svg("g");
  const frame = node.getBoundingClientRect();
  // The picture ends at the bottom of its lowest element. So its bottom edge is first set to the top of the frame, and
  // each drawn element can move the edge down. The picture does not extend to the bottom of the frame, because the
  // frame may contain elements that the picture omits.
  const edges = [frame.left, frame.top, frame.right, frame.top];
  /** @param {DOMRect} box */
  const widen = ({ left, top, right, bottom }) => {
    [edges[0], edges[1]] = [Math.min(edges[0], left), Math.min(edges[1], top)];
    [edges[2], edges[3]] = [Math.max(edges[2], right), Math.max(edges[3], bottom)];
  };
  visit(node, out);
  const [left, top] = [edges[0] - MARGIN, edges[1] - MARGIN];
  const [width, height] = [Math.ceil(edges[2] - left + MARGIN), Math.ceil(edges[3] - top + MARGIN)];
  out.setAttribute("transform", `translate(${short(-left)} ${short(-top)})`);
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" },
    svg("title", {}, forXml(caption)), svg("rect", { width, height, fill: plainColour(ui.color("--paper"))[0] }), out);

  /**
   * `within`: whether an ancestor clips the element.
   * @param {HTMLElement} element
   * @param {SVGElement} into
   */
  function visit(element, into, within = false) {
    const style = getComputedStyle(element);
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || element.matches(".sr")) return;
    const box = element.getBoundingClientRect();
    let own = into;
    if (style.opacity !== "1") into.append((own = svg("g", { opacity: style.opacity })));
    const had = own.childNodes.length;
    if (style.display !== "contents") boxOf(style, box, own);
    const canvas = () => canvasOf(/** @type {HTMLCanvasElement} */ (element), box, canvases);
    const picture = { svg: () => copyOf(element, null, box), canvas }[element.localName];
    if (picture) own.append(picture());
    if (own.childNodes.length > had && !within) widen(box);
    if (picture) return;
    const cut_ = style.overflowX !== "visible" && (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight);
    if (cut_) own = clipped(own, box);
    const lined = [style, style.display === "inline" && element.parentElement ? getComputedStyle(element.parentElement) : style].map((one) => one.textDecorationLine).find((line) => line !== "none");
    for (const child of element.childNodes) {
      if (child.nodeType === Node.ELEMENT_NODE) visit(/** @type {HTMLElement} */ (child), own, within || cut_);
      else if (child.nodeType === Node.TEXT_NODE)
        for (const { text, rect } of fragments(/** @type {Text} */ (child), style)) {
          if (!within && !cut_) widen(rect);
          own.append(textOf(text, rect, style, cut_ && style.textOverflow === "ellipsis" ? box.right : Infinity, isTurned(element), lined));
        }
    }
  }
}

/**
 * Writes the background, the gradient, the borders and the outline of a box.
 * @param {CSSStyleDeclaration & Record<string, any>} style
 * @param {DOMRect} box
 * @param {SVGElement} into
 */
function boxOf(style, { left: x, top: y, width, height }, into) {
  if (!width || !height) return;
  const round = parseFloat(style.borderTopLeftRadius) || 0;
  /** @param {number} by @param {object} more */
  const rect = (by, more) =>
    into.append(svg("rect", { x: short(x + by), y: short(y + by), width: short(Math.max(0, width - 2 * by)), height: short(Math.max(0, height - 2 * by)), rx: round ? short(Math.max(0, Math.min(round, height / 2) - by)) : null, ...more }));
  const [ground, clear] = plainColour(style.backgroundColor);
  if (clear > 0) rect(0, { fill: ground, "fill-opacity": clear < 1 ? clear : null });
  if (style.backgroundImage.startsWith("linear-gradient(to right, rgb")) {
    const stops = /** @type {string[]} */ (style.backgroundImage.match(/rgb\([^)]*\)/g));
    const id = newId("ramp");
    into.append(svg("linearGradient", { id }, stops.map((stop, i) => svg("stop", { offset: short(i / (stops.length - 1)), "stop-color": stop }))));
    rect(0, { fill: `url(#${id})` });
  }
  const sides = ["Top", "Right", "Bottom", "Left"].map((name) => [style[`border${name}Style`] === "none" ? 0 : parseFloat(style[`border${name}Width`]), style[`border${name}Color`]]);
  if (sides.every(([size, colour]) => size && size === sides[0][0] && colour === sides[0][1])) {
    const [stroke, full] = plainColour(sides[0][1]);
    if (full) rect(sides[0][0] / 2, { fill: "none", stroke, "stroke-width": sides[0][0] });
  } else
    sides.forEach(([size, colour], k) => {
      const [fill_, full] = plainColour(colour);
      if (!size || !full) return;
      const across = k % 2 === 0;
      into.append(svg("rect", { x: short(k === 1 ? x + width - size : x), y: short(k === 2 ? y + height - size : y), width: short(across ? width : size), height: short(across ? size : height), fill: fill_ }));
    });
  const shadow = /^(rgba?\([^)]*\)) 0px 0px 0px ([\d.]+)px( inset)?$/.exec(style.boxShadow);
  if (shadow) rect((shadow[3] ? 0.5 : -0.5) * Number(shadow[2]), { fill: "none", stroke: plainColour(shadow[1])[0], "stroke-width": shadow[2] });
  const line = parseFloat(style.outlineWidth);
  if (style.outlineStyle === "solid" && line) rect(-line / 2 - (parseFloat(style.outlineOffset) || 0), { fill: "none", stroke: plainColour(style.outlineColor)[0], "stroke-width": line });
}

/** @param {SVGElement} into @param {Box} box @returns {SVGElement} */
function clipped(into, box) {
  const id = newId("clip");
  const group = svg("g", { "clip-path": `url(#${id})` });
  into.append(svg("clipPath", { id }, svg("rect", attributesOf(box))), group);
  return group;
}

// ---- texts

/**
 * The text of a node line by line: [{text, rect}], without blanks at the ends.
 * @param {Text} node
 * @param {CSSStyleDeclaration} style
 */
function fragments(node, style) {
  const range = document.createRange();
  /** @param {number} first @param {number} last */
  const rectangles = (first, last) => {
    range.setStart(node, first);
    range.setEnd(node, last);
    return [...range.getClientRects()].filter(({ width, height }) => width && height);
  };
  const flat = style.writingMode === "horizontal-tb";
  /** @type {{text: string, rect: DOMRect}[]} */
  const lines = [];
  /** @param {number} first @param {number} last */
  const put = (first, last) => {
    const text = node.data.slice(first, last);
    const [before, after] = [text.length - text.trimStart().length, text.length - text.trimEnd().length];
    if (before === text.length || !rectangles(first + before, last - after).length) return;
    lines.push({ text: text.trim().replace(/\s+/g, style.whiteSpace.startsWith("pre") ? "$&" : " "), rect: range.getBoundingClientRect() });
  };
  const all = rectangles(0, node.data.length);
  if (!all.length) return lines;
  if (!flat || all.every(({ top }) => Math.abs(top - all[0].top) < 3)) put(0, node.data.length);
  else {
    /** @type {[number, number | null, number]} */
    let [begin, line, at] = [0, null, 0];
    for (const mark of node.data) {
      const [rect] = mark.trim() ? rectangles(at, at + mark.length) : [];
      if (rect && line !== null && Math.abs(rect.top - line) >= 3) {
        put(begin, at);
        begin = at;
      }
      if (rect) line = rect.top;
      at += mark.length;
    }
    put(begin, at);
  }
  return lines;
}

/**
 * Writes a line of text at its position. The line has the same width in every font.
 * @param {string} text
 * @param {DOMRect} rect
 * @param {CSSStyleDeclaration} style
 * @param {number} end  the position at which the text is cut off
 * @param {boolean} turned
 * @param {string | undefined} line  a line under or through the text
 */
function textOf(text, rect, style, end, turned, line) {
  const [pen, [fill_, opacity]] = [penFor(fontOf(style)), plainColour(style.color)];
  const flat = style.writingMode === "horizontal-tb";
  let shown_ = text;
  if (rect.right > end + 1) while (shown_ && pen.measureText(`${shown_}…`).width > end - rect.left - 2) shown_ = shown_.slice(0, -1);
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = pen.measureText(text);
  const more = { fill: fill_, "fill-opacity": opacity < 1 ? opacity : null, "font-family": style.fontFamily, "font-size": style.fontSize,
    "font-weight": style.fontWeight === "400" ? null : style.fontWeight, "font-style": style.fontStyle === "normal" ? null : style.fontStyle, "text-decoration": line, style: { "white-space": "pre" } };
  if (!flat) {
    const [x, y] = [rect.left + rect.width / 2, rect.top + rect.height / 2];
    return svg("text", { ...more, transform: `translate(${short(x)} ${short(y)}) rotate(${turned ? -90 : 90})`, y: short((up - down) / 2), "text-anchor": "middle" }, forXml(text));
  }
  const whole = shown_ === text;
  const y = rect.top + (rect.height * up) / (up + down || 1);
  return svg("text", { ...more, x: short(rect.left), y: short(y), textLength: whole ? short(rect.width) : null, lengthAdjust: whole ? "spacingAndGlyphs" : null }, forXml(whole ? text : `${shown_}…`));
}

/**
 * Whether an element with vertical text is rotated, so that the text reads upwards.
 * @param {Element} element
 * @returns {boolean}
 */
function isTurned(element) {
  const { transform, writingMode } = getComputedStyle(element);
  return writingMode !== "horizontal-tb" && (transform.startsWith("matrix(-1") || isTurned(/** @type {Element} */ (element.parentElement)));
}

/** @param {CSSStyleDeclaration} style */
function fontOf({ fontStyle, fontWeight, fontSize, fontFamily }) {
  return `${fontStyle} ${fontWeight} ${fontSize} ${fontFamily}`;
}

/** @type {CanvasRenderingContext2D} */
let measuring; // a pen that measures text and converts colours

/** @param {string} font */
function penFor(font) {
  measuring ??= el("canvas").getContext("2d", { willReadFrequently: true });
  measuring.font = font;
  return measuring;
}

// ---- pictures inside the part

/**
 * Copies an SVG of the page. The rules of the page's style sheets become attributes of the copy.
 * @param {Element} node
 * @param {CSSStyleDeclaration | null} above
 * @param {DOMRect | null} box
 * @returns {SVGElement}
 */
function copyOf(node, above, box) {
  const style = getComputedStyle(node);
  if (style.display === "none") return svg("g");
  const kept = [...node.attributes].filter(({ name }) => !/^(class|style|role|tabindex|focusable|aria-|data-|on)/.test(name));
  const copy = svg(node.localName, Object.fromEntries(kept.map(({ name, value }) => [name, value])));
  if (box) for (const [name, value] of Object.entries(attributesOf(box))) copy.setAttribute(name, value);
  if (box && style.overflowX === "visible") copy.setAttribute("overflow", "visible");
  for (const name of SVG_STYLE) {
    const value = style.getPropertyValue(name);
    if (value === above?.getPropertyValue(name) && !node.hasAttribute(name) && name !== "opacity") continue;
    if (name === "opacity" && value === "1") continue;
    const colour = name === "fill" || name === "stroke";
    copy.setAttribute(name, colour && /^(rgb|color)/.test(value) ? plainColour(value, true)[0] : value);
  }
  for (const child of node.childNodes) {
    if (child.nodeType === Node.ELEMENT_NODE) copy.append(copyOf(/** @type {Element} */ (child), style, null));
    else if (child.nodeType === Node.TEXT_NODE) copy.append(forXml(/** @type {Text} */ (child).data));
  }
  return copy;
}

/**
 * The position of a box as attributes.
 * @param {Box} box
 */
function attributesOf({ left, top, width, height }) {
  return { x: short(left), y: short(top), width: short(width), height: short(height) };
}

/**
 * A canvas as SVG. If `canvases` contains a drawing of the canvas as SVG, the result is this drawing. If not, a small
 * canvas becomes rectangles that show its pixels, and a large canvas becomes an image.
 * @param {HTMLCanvasElement} canvas
 * @param {DOMRect} box
 * @param {Canvases} canvases
 */
function canvasOf(canvas, box, canvases) {
  const [drawn, at] = [canvases.get(canvas), attributesOf(box)];
  if (!drawn) return pixelsOf(canvas, at);
  for (const [name, value] of Object.entries(at)) drawn.setAttribute(name, value);
  return drawn;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {object} at  the position of the canvas, as attributes
 */
function pixelsOf(canvas, at) {
  const { width, height } = canvas;
  if (Math.max(width, height) > PIXELS) return svg("image", { ...at, href: canvas.toDataURL(), preserveAspectRatio: "none", style: { "image-rendering": "pixelated" } });
  const copy = el("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  /** @type {Map<string, string>} */
  const paths = new Map(); // maps each colour to its runs of pixels
  for (let row = 0; row < height; row++)
    for (let first = 0; first < width; ) {
      /** @param {number} column */
      const of = (column) => data.subarray(4 * (row * width + column), 4 * (row * width + column) + 4).join();
      const colour = of(first);
      let last = first + 1;
      while (last < width && of(last) === colour) last += 1;
      paths.set(colour, `${paths.get(colour) ?? ""}M${first} ${row}h${last - first}v1h${first - last}z`);
      first = last;
    }
  const shapes = [...paths].map(([colour, d]) => {
    const [r, g, b, a] = colour.split(",");
    return a === "0" ? null : svg("path", { d, fill: `rgb(${r}, ${g}, ${b})` });
  });
  return svg("svg", { ...at, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "shape-rendering": "crispEdges" }, shapes);
}

// ---- a pen that writes SVG

/**
 * A pen that writes SVG into `node`. The page calls it like the 2D context of a canvas; the pen has only the functions
 * that the page calls.
 * @param {number} width
 * @param {number} height
 */
function vectorPen(width, height) {
  const node = svg("svg", { width, height });
  const fresh = { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, font: "10px sans-serif", textAlign: "start", textBaseline: /** @type {CanvasTextBaseline} */ ("alphabetic"), globalAlpha: 1, imageSmoothingEnabled: true };
  const names = /** @type {(keyof typeof fresh)[]} */ (Object.keys(fresh));
  /** @type {[SVGElement, any[]][]} */
  const past = [];
  let [group, d] = [node, ""];
  /** @param {SVGElement} next */
  const into = (next) => {
    group.append(next);
    group = next;
  };
  const seen = () => (pen.globalAlpha < 1 ? pen.globalAlpha : null);
  const filled = () => ({ fill: paint(pen.fillStyle), opacity: seen() });
  const drawn = () => ({ fill: "none", stroke: paint(pen.strokeStyle), "stroke-width": pen.lineWidth, opacity: seen() });
  /** @param {string | SVGElement} style */
  const paint = (style) => {
    if (typeof style === "string") return plainColour(style, true)[0];
    if (!style.id) return "none"; // a CanvasPattern of a 2D canvas has no id
    if (!style.isConnected) node.prepend(style);
    return `url(#${style.id})`;
  };
  /** @param {number} x @param {number} y @param {number} wide @param {number} tall @param {object} how */
  const rect = (x, y, wide, tall, how) => group.append(svg("rect", { x: short(Math.min(x, x + wide)), y: short(Math.min(y, y + tall)), width: short(Math.abs(wide)), height: short(Math.abs(tall)), ...how }));
  const pen = {
    ...fresh,
    node,
    canvas: { width, height },
    save: () => past.push([group, names.map((name) => pen[name])]),
    restore() {
      const last = past.pop();
      if (!last) return;
      group = last[0];
      names.forEach((name, k) => (/** @type {Record<string, any>} */ (pen)[name] = last[1][k]));
    },
    /** @param {number} x @param {number} y */
    translate: (x, y) => into(svg("g", { transform: `translate(${short(x)} ${short(y)})` })),
    /** @param {number} turn */
    rotate: (turn) => into(svg("g", { transform: `rotate(${short((180 * turn) / Math.PI)})` })),
    /** @param {number} x @param {number} y */
    scale: (x, y) => into(svg("g", { transform: `scale(${short(x)} ${short(y)})` })),
    clip() {
      const id = newId("clip");
      group.append(svg("clipPath", { id }, svg("path", { d })));
      into(svg("g", { "clip-path": `url(#${id})` }));
    },
    beginPath: () => (d = ""),
    /** @param {number} x @param {number} y */
    moveTo: (x, y) => (d += `M${short(x)} ${short(y)}`),
    /** @param {number} x @param {number} y */
    lineTo: (x, y) => (d += `L${short(x)} ${short(y)}`),
    /** @param {...number} at */
    bezierCurveTo: (...at) => (d += `C${at.map(short).join(" ")}`),
    closePath: () => (d += "z"),
    /** @param {number} x @param {number} y @param {number} wide @param {number} tall */
    rect: (x, y, wide, tall) => (d += `M${short(x)} ${short(y)}h${short(wide)}v${short(tall)}h${short(-wide)}z`),
    fill: () => group.append(svg("path", { d, ...filled() })),
    stroke: () => group.append(svg("path", { d, ...drawn() })),
    /** @param {number} x @param {number} y @param {number} wide @param {number} tall */
    fillRect: (x, y, wide, tall) => rect(x, y, wide, tall, filled()),
    /** @param {number} x @param {number} y @param {number} wide @param {number} tall */
    strokeRect: (x, y, wide, tall) => rect(x, y, wide, tall, drawn()),
    clearRect: () => node.replaceChildren((group = svg("g"))), // the whole image at its size on the page
    /** @param {string} text */
    measureText: (text) => penFor(pen.font).measureText(text),
    /** @param {string} text @param {number} x @param {number} y */
    fillText(text, x, y, most = Infinity) {
      const ruler = penFor(pen.font);
      const wide = ruler.measureText(text).width;
      /** @param {CanvasTextBaseline} line */
      const up = (line) => {
        ruler.textBaseline = line;
        return ruler.measureText(text).actualBoundingBoxAscent;
      };
      const shift = -(up(pen.textBaseline) - up("alphabetic"));
      const [, style, weight, size, family] = /** @type {RegExpExecArray} */ (/^(italic )?(bold |\d+ )?([\d.]+px) (.*)$/.exec(ruler.font));
      const anchor = { center: "middle", right: "end", end: "end" }[pen.textAlign] ?? null;
      group.append(svg("text", { x: short(x), y: short(y + shift), ...filled(), "text-anchor": anchor, "font-family": family, "font-size": size, "font-weight": weight?.trim() ?? null,
        "font-style": style?.trim() ?? null, textLength: short(Math.min(wide, most)), lengthAdjust: "spacingAndGlyphs", style: { "white-space": "pre" } }, forXml(text)));
    },
    /** @param {HTMLCanvasElement} image @param {number} left @param {number} top @param {number} wide @param {number} tall */
    drawImage: (image, left, top, wide, tall) => group.append(pixelsOf(image, attributesOf({ left, top, width: wide, height: tall }))),
    /**
     * A pattern of stripes, the only kind of pattern that the page uses: see `hatch` of colours.js.
     * @param {HTMLCanvasElement} tile
     */
    createPattern: (tile) =>
      svg("pattern", { id: newId("stripes"), width: 6, height: 6, patternUnits: "userSpaceOnUse" },
        svg("path", { d: "M-6 6l6 -6M0 6l6 -6M6 6l6 -6", stroke: plainColour(/** @type {string} */ (tile.dataset.stroke))[0], "stroke-width": 1.2 })),
  };
  return pen;
}

// ---- numbers, colours, names

/**
 * A number with the digits that a picture needs.
 * @param {number} x
 */
function short(x) {
  return String(Math.round(100 * x) / 100);
}

/**
 * Returns a colour as ["rgb(…)", opacity], which all programs can read. If `whole` is true, the string is "rgba(…)" for
 * transparent colours.
 * @param {string} colour
 * @returns {[string, number]}
 */
function plainColour(colour, whole = false) {
  if (colour === "none") return ["none", 0];
  const pen = penFor("10px sans-serif");
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = "#000";
  pen.fillStyle = colour;
  const plain = /^#\w{6}$/.test(pen.fillStyle);
  if (plain) return [`rgb(${/** @type {string[]} */ (pen.fillStyle.match(/\w\w/g)).map((part) => parseInt(part, 16)).join(", ")})`, 1];
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
  const cover = Math.round((1000 * a) / 255) / 1000;
  return [whole && a < 255 ? `rgba(${r}, ${g}, ${b}, ${cover})` : `rgb(${r}, ${g}, ${b})`, cover];
}

/**
 * Replaces the characters that XML does not allow.
 * @param {string} text
 */
function forXml(text) {
  return text.toWellFormed().replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd");
}

/** @param {string} name */
function newId(name) {
  return `${name}-${(ids += 1)}`;
}

// ---- as files

/** @param {SVGElement} picture */
export function svgText(picture) {
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture)}\n`;
}

/**
 * The picture as a PNG file.
 * @param {SVGElement} picture
 * @returns {Promise<Blob>}
 */
export async function pngOf(picture) {
  const [wide, tall] = ["width", "height"].map((name) => Number(picture.getAttribute(name)));
  const times = Math.min(SHARP, 16000 / Math.max(wide, tall));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(picture))}`;
  await image.decode();
  const canvas = el("canvas", { width: Math.round(wide * times), height: Math.round(tall * times) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((/** @type {Blob | null} */ blob) => (blob ? resolve(blob) : reject(new Error("The browser cannot make a picture of this size.")))));
}
