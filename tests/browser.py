"""The Chromium of this machine, if it has one."""

import shutil

CHROMIUM = shutil.which("chromium")
# No sandbox: root runs these tests. The rest keeps Chromium from asking its maker's hosts.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
