"""Thin command lines: the package ``momentum_transfer.tools``, which nothing else imports."""
