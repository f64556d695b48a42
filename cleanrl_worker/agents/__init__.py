"""Networks in torch: what model files hold, for the algorithms that train in torch, for evaluation and for interaction."""
