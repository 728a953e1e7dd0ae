"""The errors that a user can cause. Each message is one line: where; what was found; what is allowed; what to do.

CharlmError             base class: the command line prints the message and exits with 1; raised itself for an export
│                       that fails, a missing package, and a process that ended or differs
├── ConfigError         the YAML file, an override, options that contradict each other, another comparison's folder
├── CellError           a cell whose step charlm cannot derive its kernels from
├── DataError           the corpus: missing, empty, too small, not UTF-8, a failed download
├── VocabularyError     characters that the model has never seen
├── CheckpointError     no checkpoint, or a checkpoint of another model or a newer charlm
│   └── DamagedCheckpointError   damaged or altered, or missing in its run
├── RunError            the run's folder: holds a run already, cannot be written, is in use
├── DeviceError         a device, precision or amount of memory that this machine does not have
│   └── LoopError       charlm's loop failed on a GPU; the next call takes a slower way
└── DivergenceError     a loss, gradient or weight that is not finite
"""


class CharlmError(Exception):
    """A fault that one line explains; never shown with a traceback."""

    already_reported = False
    """Whether another process of the run prints it."""


class ConfigError(CharlmError):
    """All faults of a config, one line each in `faults`."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class CellError(CharlmError): ...


class DataError(CharlmError): ...


class VocabularyError(CharlmError): ...


class CheckpointError(CharlmError): ...


class DamagedCheckpointError(CheckpointError): ...


class RunError(CharlmError): ...


class DeviceError(CharlmError): ...


class LoopError(DeviceError): ...


class DivergenceError(CharlmError): ...


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, PyTorch's on the CPU or a GPU, or what a library needs to be loaded."""
    texts = ("out of memory", "can't allocate memory", "failed to map segment", "Cannot allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ImportError | OSError) and any(text in str(error) for text in texts)
    )


def is_out_of_processes(error: BaseException) -> bool:
    """Whether the system refused to start another thread or process."""
    return isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and "new thread" in str(error))
