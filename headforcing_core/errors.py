"""The exception for errors that a user can cause."""


class HeadForcingError(ValueError):
    """Something the user supplied cannot be used.

    The message is one sentence that names the expected value, the given value and what to do. It is raised before
    expensive work starts, and the command line and the nodes show it without a stack trace.
    """


def first_sentence(error: Exception | str) -> str:
    """The first sentence of an exception's message, or its type name if it has none (compiler messages are long)."""
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0].split(". ")[0]
