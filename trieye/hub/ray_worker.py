"""What a worker of a Ray that `join_ray` started imports first: SIGTERM is blocked there, and need not be here."""

from trieye.process.signals import let_sigterm_through

let_sigterm_through()
