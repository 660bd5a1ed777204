"""The one exception that means "the user's input is wrong", as opposed to a fault of the program."""


class InputError(ValueError):
    """Bad input: an option, a file or a checkpoint that cannot be used.

    The message is one line that names the option or file, the value received and what is allowed.
    Entry points print it and exit with status 2, without a traceback.
    """
