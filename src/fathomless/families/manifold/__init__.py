"""Weight manifolds: networks decoded from a latent space of few dimensions. This folder imports no other family."""
