"""The task `attention`: softmax(Q K^T / sqrt(d)) V, with optional masks and heads."""
