"""captum, which explains predictions and is imported when somebody asks for that."""

import importlib
from types import ModuleType

from ts.utils.util import PredictionException


def captum_attributions() -> ModuleType:
    """Returns the module `captum.attr`.

    Raises:
        PredictionException: status 501, the package captum is not installed.
    """
    try:
        return importlib.import_module("captum.attr")
    except ImportError as error:
        raise PredictionException("Explanations need the package captum.", 501) from error
