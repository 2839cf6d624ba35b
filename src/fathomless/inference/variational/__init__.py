"""Training by stochastic gradients of the evidence bound."""
