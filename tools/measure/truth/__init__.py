"""Training steps' peak memory by the compiler: the memory formulas are tested on it."""
