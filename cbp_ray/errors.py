"""The one exception that means "what you asked for cannot be done as asked"."""


class InputError(ValueError):
    """Bad input from a person: a config file, an option, an argument of a public function.

    The message is one sentence that names the field, the rule, the value found and the fix, for example
    ``replacement_rate: must lie in [0, 1], got -0.1; use 0 to switch replacement off``. The command line prints it
    as the single line on stderr and exits with code 2; in Python it is an ordinary ``ValueError``.

    Raise it before anything is started or written.
    """
