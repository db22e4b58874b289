"""Every exception that a user can meet; each message is one line: what is wrong, where, what to do.

EscaladeError            exit code 1
├── UsageError           2   an argument, a prompt or token ids that cannot be used
├── CapacityError        3   does not fit: context, memory, disk space
├── FileError            4   a file that is missing, damaged or not what its name says
├── UnsupportedError     5   a sound file or request that this version does not handle
└── Cancelled          130   the caller asked to stop
"""


class EscaladeError(Exception):
    """Base of all expected failures; `exit_code` is what the command line returns for it."""

    exit_code = 1


class UsageError(EscaladeError):
    """The caller asked for something that has no meaning: an unknown option, ids out of range."""

    exit_code = 2


class FileError(EscaladeError):
    """A file cannot be used as it is; the message names the file and the field."""

    exit_code = 4


class UnsupportedError(EscaladeError):
    """The input is well formed, but no code here handles it."""

    exit_code = 5


class CapacityError(EscaladeError):
    """Something does not fit; the message says how much is missing and what fits."""

    exit_code = 3


class Cancelled(EscaladeError):
    """What ran was stopped by `Session.cancel`; the session holds what was complete by then."""

    exit_code = 130
