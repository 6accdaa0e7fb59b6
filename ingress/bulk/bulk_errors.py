"""Declares the errors of requests about files and batches."""

from batching import errors


class NoDataDir(errors.ServeError):
    """Refuses bulk work where there is no folder for its files."""

    status = 501
    type = "NotImplementedException"
    reason = "no_data_dir"


class BulkForbidden(errors.ServeError):
    """Refuses bulk work on the inference port."""

    status = 403
    type = "BulkForbiddenException"
    reason = "bulk_forbidden"


class FileNotFound(errors.NotFound):
    """Refuses an id that no file has, or no longer."""

    type = "FileNotFoundException"
    reason = "file_not_found"


class BatchNotFound(errors.NotFound):
    """Refuses an id that no batch has, or no longer."""

    type = "BatchNotFoundException"
    reason = "batch_not_found"


class FileInUse(errors.Conflict):
    """Refuses to delete the input of a batch that still runs."""

    type = "FileInUseException"
    reason = "file_in_use"


class FileTooLarge(errors.ServeError):
    """Refuses an input file; unlike PayloadTooLarge it says why."""

    status = errors.PayloadTooLarge.status
    type = "FileTooLargeException"
    reason = "file_too_large"


class FileNotWritten(errors.ServeError):
    """Refuses a file that the disk has no room for, or does not take."""

    status = 507
    type = "FileNotWrittenException"
    reason = "file_not_written"


class DiskFailed(Exception):
    """A file of a batch cannot be read or written.

    No OSError, as that is what a Redis that is away raises.
    """
