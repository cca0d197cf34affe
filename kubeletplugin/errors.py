"""The agent's three roots of errors; what a caller may do follows from the root.

Messages are verb-first, lower case, without a trailing full stop, and name what was wrong, where and what to do.
"""


class AgentError(Exception):
    """Base of every error that the agent raises on purpose."""


class RecoverableError(AgentError):
    """May heal by itself: report it, keep running, try again with back-off."""


class FatalError(AgentError):
    """Can't heal in this process (bad flag, wrong directory): print one line and exit non-zero."""


class ClaimError(AgentError):
    """Concerns one claim only; its text is shown to the pod's owner, so it is short and holds no other
    namespace's names."""


class NotActiveError(AgentError):
    """This instance lost the lease between looking and doing; nothing was changed."""
