"""Training a model, from a config to the last checkpoint.

start.py        a run starts: new, from another run's weights, or resumed
fine_tuning.py  starting from another run's weights
run.py          Run: how a run ended, its metrics and its model
loop.py         evaluate → sample → save → stop → update → log
budget.py       the minutes
step.py         one update
optimizer.py    optimizers, learning rates, clipping
state.py        what a run carries from step to step
snapshot.py     all of it ↔ a checkpoint
folder.py       the run's folder: who may write there, and its checkpoints
metrics.py      the logs: metrics.jsonl, samples.jsonl, TensorBoard; the progress bar
signals.py      Ctrl-C, SIGTERM and other signals that stop a run
machine.py      device, threads, precision, kernels; the memory that a run needs
plan.py         what a run will cost
"""
