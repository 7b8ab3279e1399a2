// Parameters in blocks, as a GGUF file holds them: 32 numbers with a scale in float16, and in some kinds a minimum. A
// number is its scale times a small whole number, plus the minimum.

/**
 * A matrix in blocks, which lie row after row. `length` is the count of its numbers.
 * @typedef {{kind: string, bytes: Uint8Array, length: number}} Blocks
 * @typedef {Float32Array | Blocks} Weight
 */

const BLOCK = 32; // numbers

/**
 * The kinds of blocks: the bytes of a block and of its head, the bits of a whole number, and the whole number that
 * stands for 0. The order is that of `linear_blocks` in native/page.cpp.
 * @type {Record<string, {bytes: number, head: number, bits: number, zero: number, least?: boolean}>}
 */
export const KINDS = {
  Q4_0: { bytes: 18, head: 2, bits: 4, zero: 8 },
  Q4_1: { bytes: 20, head: 4, bits: 4, zero: 0, least: true },
  Q8_0: { bytes: 34, head: 2, bits: 8, zero: 0 },
};

/**
 * The bytes of `count` numbers: float32, float16 or in blocks.
 * @param {string} kind
 * @param {number} count
 */
export function bytesOf(kind, count) {
  if (kind in KINDS) return (count / BLOCK) * KINDS[kind].bytes;
  return kind === "F32" ? 4 * count : 2 * count;
}

/** All numbers of float16, by their bits. */
export const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => half(bits));

/**
 * Converts the bits of a float16 to a number: one bit for the sign, five for the power of two, ten for the fraction.
 * @param {number} bits
 */
function half(bits) {
  const [sign, power, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, (bits & 1023) / 1024];
  if (power === 31) return fraction ? NaN : sign * Infinity;
  return sign * (power ? (1 + fraction) * 2 ** (power - 15) : fraction * 2 ** -14);
}

/**
 * The numbers of a weight from index `first` to before `last`. In a weight in blocks, a block begins at `first`, and
 * another at `last`. Each number is rounded to float32, as in the library.
 * @param {Weight} weight
 * @returns {Float32Array}
 */
export function numbersOf(weight, first = 0, last = weight.length) {
  if (!("bytes" in weight)) return weight.subarray(first, last);
  const { bytes: size, head, bits, zero, least } = KINDS[weight.kind];
  const out = new Float32Array(last - first);
  let at = (first / BLOCK) * size;
  for (let block = 0; block < out.length; block += BLOCK, at += size) {
    const scale = HALVES[weight.bytes[at] | (weight.bytes[at + 1] << 8)];
    const minimum = least ? HALVES[weight.bytes[at + 2] | (weight.bytes[at + 3] << 8)] : 0;
    for (let i = 0; i < BLOCK; i++) {
      // byte n of a block of 4 bits has number n in its low bits, and number n + 16 in its high bits
      const byte = weight.bytes[at + head + (bits === 4 ? i % 16 : i)];
      const whole = bits === 4 ? (i < 16 ? byte & 15 : byte >> 4) - zero : (byte << 24) >> 24;
      out[block + i] = whole * scale + minimum;
    }
  }
  return out;
}
