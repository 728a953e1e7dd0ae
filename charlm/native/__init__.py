"""C++ for the CPU: compilation, calls, and the kernels. They read and write tensors and know no gradients.

    recurrence.py   the loop over a window, in both directions           recurrence.h, recurrence.cpp, and for each cell
                                                                         a text that charlm/cells/cpp.py generates;
                                                                         generate.h: characters, any number in one call
    operators.py    products, the gradient of a looked-up table,         product.h, product.cpp, tiles.h, lookup.cpp,
                    cross-entropy, masks for dropout                     loss.cpp, random.cpp
                    dropout and penalties of outputs are called      output.cpp
                    by charlm/model/objective.py
    update.py       the norm of the gradients, Adam                      update.cpp
    recording.py    an update's calls, recorded and repeated
    precision.py    the choice between float32 and bfloat16

    kernels.py      the list of all kernels, and the kernel of a cell
    loading.py      libraries that came with charlm, or are compiled; threads.cpp, which all of them share
    compiler.py     Kernel: a C++ file; compiles for this machine, and keeps the libraries in the cache
    structs.py      the structs that Python fills in, parsed from the C++
    runtime.cpp     the part of the C++ runtime that a wheel's libraries need

team.h and threads.h divide a call among threads; vector.h and cpu.h are the vectors of this CPU. Wheels are built
without torch, so kernels.py and the files below it import none.
"""
