"""The one exception that a user can cause; everything else is a bug."""


class InputError(Exception):
    """Something the user gave is wrong. The message says what was expected, what was found and what to do next.

    Tools print it as one line and exit with code 2; library callers may catch it.
    """

    def __init__(self, message: str) -> None:
        # A DataLoader raises a worker's exception again with the worker's traceback in front of the message.
        if message.startswith("Caught InputError in "):
            message = message.rstrip().rpartition("InputError: ")[2]
        super().__init__(message)
