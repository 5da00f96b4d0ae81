"""Commands of ``python -m k3core``, by subsystem: their arguments, and what each calls and prints.

A command imports its study when it runs, so that ``--help`` loads nothing heavy.
"""
