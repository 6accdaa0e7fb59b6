"""Decides whether there is a page."""

from batching.settings.settings import Settings
from ingress.role import Role, parse_address


def has_page(settings: Settings) -> bool:
    """Returns whether browsers are shown the page and the API document.

    Raises:
        SettingsError: the inference address is none.
    """
    if settings.page == "off" or settings.keys_path() is not None:  # browsers have no key to show
        return False
    address = parse_address(settings.inference_address, Role.INFERENCE)
    # A unix socket is there for a proxy, whose clients may be anybody.
    return settings.page == "on" or (address.is_private and address.socket_path is None)
