"""The errors a user can cause; each message is one line: where, what was found, what is allowed.

CharlmError             anything below: the command line prints the message and exits with 1
├── ConfigError         the YAML file, an override, or settings that contradict one another
├── DataError           the corpus: missing, empty, too small, not UTF-8, a failed download
├── VocabularyError     characters that the model has never seen
├── CheckpointError     a checkpoint of another model or of a later charlm
│   └── DamagedCheckpointError   missing, damaged or altered
├── RunError            the run's folder: already holds a run, cannot be written
├── DeviceError         a device or precision that this machine does not have
└── DivergenceError     a loss or gradient that is no longer finite
"""


class CharlmError(Exception):
    """A mistake or mishap that one clear line explains; never shown with a traceback."""


class ConfigError(CharlmError):
    """Faults of a config, all at once: one line each in `faults`."""

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class DataError(CharlmError):
    """The corpus cannot be used."""


class VocabularyError(CharlmError):
    """Text holds characters that the vocabulary lacks."""


class CheckpointError(CharlmError):
    """A file is no usable checkpoint."""


class DamagedCheckpointError(CheckpointError):
    """A file is no checkpoint, or not what was once written."""


class RunError(CharlmError):
    """A run's folder cannot be used."""


class DeviceError(CharlmError):
    """The device or precision that was asked for is not to be had."""


class DivergenceError(CharlmError):
    """Training produced a number that is not finite."""
