"""The one exception a user can cause."""


class HeadForcingError(ValueError):
    """Something the user supplied cannot be used.

    The message is one sentence that names what was expected, what was found and what to do. It is raised before any
    heavy work starts, and the command line and the nodes show it without a stack trace.
    """


def first_sentence(error: Exception | str) -> str:
    """The first sentence of what an exception says, or its name: compilers say pages."""
    said = str(error).strip() or type(error).__name__
    return said.splitlines()[0].split(". ")[0]
