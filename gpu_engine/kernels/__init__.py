"""Native kernels: their sources, and how they are built at first use."""
