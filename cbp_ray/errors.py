"""The exceptions that reach people as one line: what was asked for cannot be done as asked, Ray failed, a disk failed."""


class InputError(ValueError):
    """Bad input from a person: a config file, an option, an argument of a public function.

    The message is one sentence that names the field, the rule, the value found and the fix, for example
    ``replacement_rate: must lie in [0, 1], got -0.1; use 0 to switch replacement off``. The command line prints it
    as the single line on stderr and exits with code 2; in Python it is an ordinary ``ValueError``.

    Raise it before anything is started or written.
    """

    def __init__(self, message: str) -> None:
        # What it quotes may have several lines, as an array has.
        super().__init__(" ".join(message.split()))


class ClusterError(RuntimeError):
    """Ray failed, through no fault of the input. The message is one sentence; the command line ends with code 1."""


class StorageError(ClusterError):
    """A file could not be written or read, while something ran that was well begun: one sentence and code 1, too."""
