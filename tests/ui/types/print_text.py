"""Texts of `print` that do not fit the values, and what is no text."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, grid, load, print, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def print_text(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i)
    print()  #~ E0218
    print(v)  #~ E0218
    print("x", v)  #~ E0218
    print("x {} of {}", v)  #~ E0218
    print("x {:.3f}", v)  #~ E0218
    print("x {}\n", v)  #~ E0218
    print("x {}", arange(2048))  #~ E0218
    print("x {}", v, end="")  #~ E0113
    print("x {}", v, where=i)  #~ E0210
    print("x {}", x)  #~ E0217
    print(f"x {v}")  #~ E0106
    print("x {}", arange(4), where=arange(3) < 2)  #~ E0202
    y = print("x {}", v)  #~ E0217
    store(out, i, v)
