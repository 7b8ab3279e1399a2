"""The lines that mend a mistake."""

SCORES = "scores = q @ np.swapaxes(k, -1, -2)"
SCALE = f"{SCORES} / np.sqrt(q.shape[-1])"
WEIGHTS = (
    "e = np.exp(scores - scores.max(axis=-1, keepdims=True));"
    " weights = e / e.sum(axis=-1, keepdims=True)"
)
CONTEXT = "out = weights @ v"
HIDE = "scores = np.where(mask, scores, -np.inf)"
PROJECT = "q, k, v = x @ w_q, x @ w_k, x @ w_v"
FLOATS = "out = np.zeros((L, dv), dtype=float)  # not zeros_like(v); or x.astype(float) first"
SEES = "weights = np.where(mask.any(axis=-1, keepdims=True), weights, 0.0)"
