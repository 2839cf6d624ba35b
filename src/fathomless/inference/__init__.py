"""How a posterior is found. May import `system`, `posterior`, `nn`, `data` and `plots`, and never a family."""
