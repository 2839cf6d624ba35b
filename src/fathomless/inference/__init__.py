"""Inference of posteriors; may import `system`, `posterior`, `nn`, `data` and `plots`, and never a family."""
