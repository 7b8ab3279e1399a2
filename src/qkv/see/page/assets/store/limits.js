// The limits of a reader's input: the length of a text, and the number of masks.

export const LONGEST = 100_000; // the largest number of characters in a text; a browser accepts an address with two such texts
export const MOST_MASKS = 4_000_000; // the largest number of masks in an address
