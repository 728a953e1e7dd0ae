"""The machine: devices, processes, files; what charlm prints; numbers and sections of options.

host.py           the CPU, its cores and free memory, and how idle threads wait; imports only the standard library
device.py         device names, and torch's settings; `choose_machine` chooses for a run
process_group.py  ProcessGroup: the processes of a run, the shard of the batch that each computes, sums of gradients
files.py          atomic replacement of files, and which may be read and written
lock.py           one process at a time in a run's folder
cache.py          the cache folder and its bounds
console.py        say: everything on stderr
formatting.py     numbers with units, and text without control characters
number.py         in_range: numbers as arguments
arrays.py         types of NumPy arrays
section.py        Section: what the sections of a config share
faults.py         pydantic's errors as lines for a person
"""
