"""Where an ingress is in its life."""


class Lifecycle:
    """Whether it is still loading its startup models, or on its way out. Read from any thread."""

    def __init__(self) -> None:
        self.is_loading = False
        self.is_draining = False
