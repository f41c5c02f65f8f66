"""All C++ of the project, the one header that defines matching, their build and the loader.

`grace.native.build` compiles `native/src` into `libgrace_cpu.so`, and on demand
`native/cuda/*.cu` into `libgrace_cuda.so`. It needs only the standard library and a compiler.
`grace.native.loader` opens both through ctypes; its `declare` makes a native function callable, and
a call releases the interpreter lock.
"""
