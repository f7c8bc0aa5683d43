"""Tensor cores round f32 to tf32, which an author has to ask for."""

import tilec
from tilec import In, Out, f32, grid, load, store


@tilec.kernel
def product_of_f32(a: In[f32, 16, 16], b: In[f32, 16, 16], out: Out[f32, 16, 16]):
    grid(1)
    x, y = load(a, (0, 0), shape=(16, 16)), load(b, (0, 0), shape=(16, 16))
    store(out, (0, 0), x @ y)  #~ E0201
