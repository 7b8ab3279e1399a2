// Converts the patterns of a tokenizer.json, which are written for Oniguruma, to JavaScript. Python rejects
// tokenizers with patterns that cannot be converted: see page/engine.py.

const PART = /\\[pP]\{[^}]*\}|\\u[\da-f]{4}|\\.|\(\?i:|\(\?:|\(\?<?[=!]|\{\d+(?:,\d*)?\}|[^]/giu;
const FOLDED = /** @type {Record<string, string>} */ ({ s: "ſ", k: "\u212a" }); // other letters that match if case is ignored, by the rules of Unicode
const SYNTAX = "^$\\.*+?()[]{}|/";
const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
const MORE = "²³¹¼½¾"; // Oniguruma counts these characters as word characters, except inside a character class
const CLASSES = /** @type {Record<string, string>} */ ({
  s: "\\p{White_Space}", S: "\\P{White_Space}", d: "\\p{Nd}", D: "\\P{Nd}", w: WORD,
});
const CATEGORY = /^(?:[LMNPSZC][a-z&]?|Alphabetic)$/;

/**
 * Converts a pattern {"Regex": ...} or {"String": ...}.
 * @param {{Regex?: string, String?: string}} pattern
 */
export function patternOf({ Regex, String: plain = "" }) {
  return new RegExp(Regex === undefined ? escaped(plain) : translated(Regex), "gu");
}

/** @param {string} text */
export function escaped(text) {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}

/** @param {string} pattern */
function translated(pattern) {
  const groups = [false]; // one flag for each open group: whether the group ignores case
  let inside = false; // a class
  let translation = "";
  for (const [part] of /** @type {Iterable<RegExpExecArray>} */ (pattern.matchAll(PART))) {
    if (part.endsWith("}") && /^\\p/i.test(part)) translation += property(part);
    else if (part[0] === "\\" && part.length === 2) translation += escape(part[1], inside);
    else if (inside) {
      inside = part !== "]";
      translation += folded(part, groups);
    } else if (part === "[") {
      inside = true;
      translation += part;
    } else if (part[0] === "(") {
      groups.push(part === "(?i:" || groups.at(-1));
      translation += part === "(?i:" ? "(?:" : part;
    } else if (part === ")") {
      groups.pop();
      translation += part;
    } else if (part === ".") translation += "[^\\n]";
    else translation += /^[a-z]$/i.test(part) && groups.at(-1) ? `[${folded(part, groups)}]` : part;
  }
  return translation;
}

/**
 * Translates a letter for use inside the brackets of a character class. If the group ignores case, the result also
 * contains the letter's forms in the other case.
 * @param {string} part
 * @param {boolean[]} groups
 */
function folded(part, groups) {
  if (!groups.at(-1) || !/^[a-z]$/i.test(part)) return part;
  const small = part.toLowerCase();
  return small + small.toUpperCase() + (FOLDED[small] ?? "");
}

/** @param {string} part  for example \p{L} or \p{Han} */
function property(part) {
  const name = part.slice(3, -1);
  return CATEGORY.test(name) ? part : `${part.slice(0, 3)}Script=${name}}`;
}

/**
 * A character after a backslash.
 * @param {string} mark
 * @param {boolean} inside
 */
function escape(mark, inside) {
  if (/w/i.test(mark) && !inside) return `[${mark === "W" ? "^" : ""}${WORD}${MORE}]`;
  if (mark in CLASSES) return inside ? CLASSES[mark] : `[${CLASSES[mark]}]`;
  return /[a-z]/i.test(mark) || SYNTAX.includes(mark) || (inside && mark === "-") ? `\\${mark}` : mark;
}
