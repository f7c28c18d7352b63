"""Unblocks SIGTERM on import; preloaded by the workers of a Ray that `join_ray` started with SIGTERM blocked."""

from trieye.process.signals import let_sigterm_through

let_sigterm_through()
