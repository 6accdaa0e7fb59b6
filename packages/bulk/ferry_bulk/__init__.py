"""Many inputs as one file, in OpenAI's shape: a service beside a server, whose client it is.

`main` starts it: `app` answers clients, `feeder` finds batches and has a `BatchRun` run each of
them. They meet in the `folder`, whose files are the truth; nothing else is kept.
"""
