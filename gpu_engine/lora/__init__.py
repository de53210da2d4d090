"""Low-rank adapters (LoRA, Hu et al. 2021): several beside one model, each request with its own."""
