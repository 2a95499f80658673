"""Programs of the kinds that people train and serve, reduced, one in each file.

Each is our own and says in its first line what it is like. A file has:

MESH          axis → size, in mesh order.
build         given the devices, (function, arguments) or also options of `xray`.
EXCHANGES     {(kind, axes, executions): bytes}: what a person worked out, with the
              arithmetic above it. Bytes are those of the full array of one execution,
              as a group exchanges it: the result of an all-gather, the operand of all
              other kinds; those of several arrays are added up.
TPU, GPU, CPU_OLD
              the same for one compiler where it does it otherwise, and why.
              CPU_OLD is the oldest JAX.
FINDINGS      the codes of the mistakes in it. TPU_FINDINGS, GPU_FINDINGS likewise.
"""
