"""What `ferry bench` is made of: load on a URL, figures, batch sizes, charts and a page."""
