"""Training a draft for a model from that model's own answers: `bosquet draft train`."""
