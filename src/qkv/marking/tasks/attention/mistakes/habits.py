"""What is found without a formula: right, by another habit than the field's."""

from qkv.marking.mistake import Mistake

WEIGHTS_FIRST = Mistake(
    "tuple-order",
    "the weights come first and the output second",
    "the second of the two arrays returned is the output",
    "return weights @ v, weights",
    kind="convention",
    nudge="Print the shapes of the two: which of them has a column for each of the values'?",
    where="the return statement",
)
PER_KEY = Mistake(
    "mask-per-key",
    "the mask is one for the keys, (S,), where others have one for each query and key, (L, S)",
    "a causal mask cannot be given in it",
    "scores = np.where(mask, scores, -np.inf)  # takes both",
    kind="convention",
    nudge="How would each query get a mask of its own?",
    where="the place where the mask is read",
)
