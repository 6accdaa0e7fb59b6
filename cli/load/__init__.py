"""What `ferry bench` is made of: load on a URL, runs of it, figures, charts and a page."""
