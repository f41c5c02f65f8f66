"""All C++ of the project, the one header that defines matching, their build and the loader.

`grace.native.build` compiles `native/src/*.cpp` into `native/_build/libgrace_cpu.so`, and if asked
`native/cuda/*.cu` into `libgrace_cuda.so` beside it. It needs nothing but the standard library and
a compiler. `grace.native.loader` opens them through ctypes; its `declare` makes a native function
callable, and a call releases the interpreter lock.
"""
